"""The loss against cases computed by hand, and accumulation against the single batch."""

import math

import numpy as np
import pytest
import torch
from tiny import weights

from fade_sim.settings import Train
from llm.batch import Rollouts
from llm.logprob import scored
from llm.loss import Totals, kl_term, token_loss, token_weights
from llm.settings import Loss

F32 = pytest.approx


def step_loss(per_token, lengths, denominator, constant_length=8, kept=None):
    """Loss of a whole step from per-token losses, rollouts end to end."""
    length = torch.tensor(lengths)
    kept = torch.ones(len(lengths), dtype=torch.bool) if kept is None else torch.tensor(kept)
    totals = Totals(int((length * kept).sum()), int(kept.sum()), len(lengths))
    weight = token_weights(length * kept, totals, denominator, constant_length) * kept
    return float((weight.repeat_interleave(length) * torch.tensor(per_token, dtype=torch.float32)).sum())


def surrogate(ratio, A, correction="clip", clip=0.2, **loss):
    """Objective (minus the loss) of one token."""
    out = token_loss(torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([A], dtype=torch.float64),
                     torch.tensor([0]), Train(correction=correction, clip=clip), Loss(**loss))
    return -float(out.loss), out


# --- the policy gradient -------------------------------------------------------------------------------


def test_zero_loss_with_a_gradient():
    """Two arms, one rollout of each, A = (.5, -.5), ratio 1: loss (-.5 + .5)/2 = 0.

    Gradient of -(1/2) sum_i A_i log pi(i) at pi = (.5, .5), by z_0: -(1/2)(.5 * .5 - .5 * (-.5)) = -.25.
    """
    z = torch.zeros(2, requires_grad=True)
    logprob = torch.log_softmax(z, dim=0)
    out = token_loss(logprob, None, torch.tensor([0.5, -0.5]), torch.arange(2), Train(), Loss())
    loss = out.loss.mean()
    loss.backward()
    assert loss.item() == 0.0
    assert z.grad.tolist() == [-0.25, 0.25]


def test_ratio_is_new_over_old():
    """p_new = .6, p_old = .5: ratio 1.2 = exp(log .6 - log .5), and the objective is 1.2 A."""
    out = token_loss(torch.tensor([math.log(0.6)]), torch.tensor([math.log(0.5)]), torch.ones(1), torch.tensor([0]),
                     Train(correction="ratio"), Loss())
    assert out.ratio.item() == F32(1.2) and out.loss.item() == F32(-1.2)


@pytest.mark.parametrize(("ratio", "A", "expected", "cut"), [
    (0.5, 1.0, 0.5, False),  # min(.5, .8)
    (0.5, -1.0, -0.8, True),  # min(-.5, -.8)
    (2.0, 1.0, 1.2, True),  # min(2, 1.2)
    (2.0, -1.0, -2.0, False),  # min(-2, -1.2)
])
def test_clip_takes_the_smaller_surrogate(ratio, A, expected, cut):
    value, out = surrogate(ratio, A)
    assert value == F32(expected) and out.cut.item() is cut


def test_clip_high_is_the_upper_half_width():
    """clip .2, clip_high .28: ratio 1.25 with A > 0 is not cut, 2 becomes 1.28; below, .8 stays."""
    assert surrogate(1.25, 1.0, clip_high=0.28)[0] == F32(1.25)
    assert surrogate(2.0, 1.0, clip_high=0.28)[0] == F32(1.28)
    assert surrogate(0.5, -1.0, clip_high=0.28)[0] == F32(-0.8)


def test_a_clipped_token_has_no_gradient_and_others_theirs():
    """d/d logp of ratio A is ratio A: 0 where the clip is active, else 2 * (-1) at ratio 2, A = -1."""
    for A, expected in ((1.0, 0.0), (-1.0, 2.0)):
        logprob = torch.tensor([math.log(2.0)], requires_grad=True)
        token_loss(logprob, torch.zeros(1), torch.tensor([A]), torch.tensor([0]), Train(correction="clip"),
                   Loss()).loss.sum().backward()
        assert logprob.grad.item() == F32(expected)


def test_no_correction_ignores_the_age_of_rollouts():
    """A grad log pi whatever the old log-probabilities: gradient -A, ratio 1."""
    logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    out = token_loss(logprob, torch.tensor([-3.0, -0.1]), torch.tensor([0.5]), torch.zeros(2, dtype=torch.long),
                     Train(correction="none"), Loss())
    out.loss.sum().backward()
    assert logprob.grad.tolist() == [-0.5, -0.5] and out.ratio.tolist() == [1.0, 1.0]


def test_sequence_ratio_of_many_small_differences():
    """200 tokens of log-ratio .05: token ratio e^.05 = 1.0513, sequence ratio e^10 = 22026; capped at 5 it is 5."""
    logprob, old, row = torch.full((200,), -1.0, requires_grad=True), torch.full((200,), -1.05), torch.zeros(200).long()
    one, train = torch.ones(1, dtype=torch.float64), Train(correction="ratio")
    assert token_loss(logprob, old, one, row, train, Loss()).ratio[0].item() == F32(math.exp(0.05), rel=1e-5)
    long = token_loss(logprob, old, one, row, train, Loss(ratio="sequence"))
    assert long.ratio[7].item() == F32(22026.5, rel=1e-4)
    capped = token_loss(logprob, old, one, row, train, Loss(ratio="sequence", ratio_cap=5.0))
    assert capped.ratio.tolist() == [F32(5.0)] * 200 and capped.cut.all()
    capped.loss.sum().backward()  # truncated importance sampling keeps the gradient, with weight 5
    assert logprob.grad.tolist() == [F32(-5.0)] * 200


def test_a_sequence_ratio_beyond_float32_is_finite_under_a_cap():
    logprob, old = torch.full((100,), -1.0), torch.full((100,), -9.0)  # e^800
    out = token_loss(logprob, old, torch.ones(1), torch.zeros(100).long(), Train(correction="ratio"),
                     Loss(ratio="sequence", ratio_cap=10.0))
    assert out.ratio.tolist() == [F32(10.0)] * 100


# --- denominators --------------------------------------------------------------------------------------


def test_token_mean_is_over_the_step():
    """1 token with loss 1 and 4 tokens with loss 0: 1/5 = .2; a mean of means would be .5."""
    assert step_loss([1, 0, 0, 0, 0], [1, 4], "token_mean") == F32(0.2)
    # 2 tokens of sum 2, 8 tokens of sum 0: 2/10
    assert step_loss([1, 1] + [0] * 8, [2, 8], "token_mean") == F32(0.2)


def test_sequence_mean_weighs_rollouts_equally():
    """(1/1 + 0/4)/2 = .5."""
    assert step_loss([1, 0, 0, 0, 0], [1, 4], "sequence_mean") == F32(0.5)


def test_constant_divides_by_rollouts_too():
    """2 and 4 tokens of loss 1, length 8: (2 + 4)/(2 * 8) = .375."""
    assert step_loss([1] * 6, [2, 4], "constant") == F32(0.375)


@pytest.mark.parametrize("denominator", ["token_mean", "sequence_mean", "constant"])
def test_a_step_without_a_token_is_zero(denominator):
    assert step_loss([3.0, 3.0, 3.0], [3], denominator, kept=[False]) == 0.0


@pytest.mark.parametrize("denominator", ["token_mean", "sequence_mean", "constant"])
def test_micro_batches_give_the_gradient_of_the_single_batch(make_trainer, denominator):
    """16 rollouts at once, or 3 at a time: the same update (a bug of 1/6 or of mean of means would be percents)."""
    moved = []
    for size in (256, 3):
        trainer = make_trainer(**{"loss.denominator": denominator, "parallel.micro_batch": size})
        start = weights(trainer)
        trainer.advance()
        moved.append(weights(trainer) - start)
    assert moved[0].norm() > 1e-3
    assert (moved[1] - moved[0]).norm() < 1e-5 * moved[0].norm()


def test_the_gradient_of_a_step_is_the_one_computed_by_hand(make_trainer):
    """-(1/(N L)) sum_i A_i grad log pi(rollout i), from a plain loop over rollouts without padding, head or chunks."""
    trainer = make_trainer(**{"model.lr": 1.0})
    batch = trainer.collect()
    _, advantage = trainer.weigh(batch)
    model, r = trainer.policy.model, batch.rollouts
    total = 0.0
    for i in range(len(r)):
        ids = r.ids[i][r.prompt[i] | r.answer[i]]
        logprob = torch.log_softmax(model(input_ids=ids[None]).logits[0].double(), dim=-1)
        first, n = int(r.prompt[i].sum()), int(r.answer[i].sum())
        own = sum(logprob[first - 1 + t, ids[first + t]] for t in range(n))
        c = r.reward[r.group == r.group[i]].sum() / 4
        assert advantage[i] == r.reward[i] - c  # dr_grpo
        total = total + (r.reward[i] - c) * own
    (total / (len(r) * 5)).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad(set_to_none=True)
    start = weights(trainer)
    trainer.learn(batch, advantage)
    assert expected.norm() > 1e-3
    assert (weights(trainer) - start - expected).norm() < 1e-4 * expected.norm()


# --- regularisers --------------------------------------------------------------------------------------


def two_arms(p):
    """Logits of a two-armed policy, and its KL to (.5, .5)."""
    z = torch.tensor([math.log(p), math.log(1 - p)], requires_grad=True)
    return z, lambda: (torch.softmax(z, 0) * (torch.log_softmax(z, 0) - math.log(0.5))).sum()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_gradient_of_every_estimator_is_that_of_the_kl(kind):
    """Mean over the policy itself, exactly: sum_a pi_a grad(term_a) = grad KL. And values: E k1 = E k3 = KL."""
    z, kl = two_arms(0.7)
    term = kl_term(torch.log_softmax(z, 0), torch.full((2,), math.log(0.5)), kind)
    pi = torch.softmax(z.detach(), 0)
    (pi * term).sum().backward()
    (expected,) = torch.autograd.grad(kl(), z)
    assert z.grad.tolist() == F32(expected.tolist(), abs=1e-7)
    # .7 log 1.4 + .3 log .6 = .08228; E[d^2]/2 = (.7 * .33647^2 + .3 * .51083^2)/2 = .07877
    assert float((pi * term.detach()).sum()) == F32({"k1": 0.082283, "k2": 0.078767, "k3": 0.082283}[kind], abs=1e-5)


def test_kl_lowers_itself():
    """No reward signal, KL .0823, coefficient .1: loss +.00823, and a step lowers the KL."""
    z, kl = two_arms(0.7)
    before = float(kl().detach())
    logprob = torch.log_softmax(z, 0)
    out = token_loss(logprob, None, torch.zeros(2), torch.arange(2), Train(), Loss(kl="k1", kl_coef=0.1),
                     reference=torch.full((2,), math.log(0.5)))
    loss = (torch.softmax(z.detach(), 0) * out.loss).sum()
    loss.backward()
    assert loss.item() == F32(0.00823, abs=1e-5)
    with torch.no_grad():
        z -= z.grad
    assert float(kl().detach()) < before


def test_entropy_bonus_raises_entropy():
    """H = 1 nat, coefficient .01, no reward: loss -.01; a step raises H."""
    z = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    H = torch.special.entr(torch.softmax(z, 0)).sum()
    out = token_loss(torch.log_softmax(z, 0)[:1], None, torch.zeros(1), torch.tensor([0]), Train(),
                     Loss(entropy_coef=0.01), entropy=H[None])
    assert out.loss.item() == F32(-0.01 * H.item())
    out.loss.sum().backward()
    moved = (z - z.grad).detach()
    assert torch.special.entr(torch.softmax(moved, 0)).sum() > H


def test_measured_entropy_changes_no_gradient(make_trainer):
    """Coefficient 0: the metric is there and the update is bit for bit that of a run that cannot know it."""
    moved = []
    for probe in (True, False):
        trainer = make_trainer(**{"train.record": 1, "probe.entropy_slope": probe})
        row = trainer.advance()
        assert "entropy_loss" not in row and row["entropy"] > 0
        moved.append(weights(trainer))
    assert torch.equal(*moved)


# --- ratios of a run -----------------------------------------------------------------------------------


def test_the_ratio_moves_after_the_first_update_of_a_batch(make_trainer):
    """One epoch on fresh rollouts: exactly 1. Two epochs: the second is compared with the first, not with itself."""
    once = make_trainer(**{"train.correction": "ratio"}).advance()
    assert once["ratio"] == 1.0 and once["ratio_max"] == 1.0
    twice = make_trainer(**{"train.correction": "ratio", "train.epochs": 2}).advance()
    assert twice["ratio_max"] > 1.001


def test_the_first_ratio_is_exactly_one_in_bfloat16_and_small_micro_batches(make_trainer):
    """Two forward passes of another shape differ in bfloat16 (a step above 1 is 1/128); none is compared."""
    row = make_trainer(**{"train.correction": "clip", "model.dtype": "bfloat16", "parallel.micro_batch": 1}).advance()
    assert row["ratio"] == 1.0 and row["ratio_max"] == 1.0 and row["cut"] == 0.0


def test_stale_rollouts_are_weighed_by_the_probabilities_they_were_sampled_with(make_trainer):
    """Step 3 of lag 2 learns from rollouts of the initial policy: age 2, and the ratio is pi/mu, not 1."""
    trainer = make_trainer(**{"train.correction": "ratio", "train.staleness": 2, "train.steps": 5})
    rows = [trainer.advance() for _ in range(4)]
    assert [row["age"] for row in rows] == [0.0, 1.0, 2.0, 2.0]
    assert rows[0]["ratio_max"] == 1.0 and rows[2]["ratio_max"] > 1.001


# --- shapes and counts ---------------------------------------------------------------------------------


def test_position_t_scores_token_t_plus_1():
    """tokens [7,8,9,4], answer mask [0,0,1,1]: the scored targets are [9,4]."""
    ids, mask = torch.tensor([[7, 8, 9, 4]]), torch.tensor([[False, False, True, True]])
    assert ids[:, 1:][scored(mask)].tolist() == [9, 4]


def test_lengths_are_those_of_the_answers_whatever_is_masked(make_trainer):
    """Lengths [3, 8 (cut off), 5]: mean 16/3, min 3, max 8, a third truncated."""
    from llm.probes import rollout_row
    from llm.trainer import Batch

    trainer = make_trainer(**{"loss.mask_truncated": True})
    answer = torch.arange(8)[None] < torch.tensor([3, 8, 5])[:, None]
    blank = torch.zeros(3, 8)
    r = Rollouts(ids=blank.long(), prompt=blank.bool(), answer=answer, logprob=blank, entropy=blank,
                 group=torch.zeros(3).long(), problem=torch.zeros(3).long(), finished=torch.tensor([True, False, True]),
                 reward=torch.tensor([1.0, 0, 0], dtype=torch.float64), born=torch.zeros(3).long())
    row = rollout_row(Batch(r, np.array([0]), np.array([[0, 1, 0, 16, 3]])), torch.zeros(3), 0, trainer.ranks)
    assert (row["length"], row["length_min"], row["length_max"]) == (F32(16 / 3), 3, 8)
    assert row["truncated"] == F32(1 / 3)


def test_spread_within_groups_is_not_spread_of_the_batch(make_trainer):
    """Two groups of two, rewards (0,0) and (1,1): batch std .5, within every group 0, all advantages 0."""
    from llm.probes import rollout_row
    from llm.trainer import Batch

    trainer = make_trainer(**{"train.group_size": 2})
    one = torch.ones(4, 1)
    r = Rollouts(ids=one.long(), prompt=one.bool() & False, answer=one.bool(), logprob=0 * one, entropy=0 * one,
                 group=torch.tensor([0, 0, 1, 1]), problem=torch.zeros(4).long(), finished=one[:, 0].bool(),
                 reward=torch.tensor([0.0, 0, 1, 1], dtype=torch.float64), born=torch.zeros(4).long())
    batch = Batch(r, np.array([0, 1]), np.array([[0, 0, 1, 2, 2], [1, 2, 1, 2, 2]]))
    _, advantage = trainer.weigh(batch)
    row = rollout_row(batch, advantage, 0, trainer.ranks)
    assert (row["reward_std"], row["reward_std_within"], row["advantage_abs"]) == (0.5, 0.0, 0.0)


def test_all_answers_cut_off_and_masked_changes_nothing(make_trainer):
    """One token at most, and it is never the end token of a finished answer: loss 0, gradient 0, no NaN."""
    trainer = make_trainer(**{"rollout.max_tokens": 1, "loss.mask_truncated": True, "loss.denominator": "token_mean",
                              "reward.name": "verifiers:digit"})
    batch = trainer.collect()
    object.__setattr__(batch.rollouts, "finished", torch.zeros(len(batch.rollouts), dtype=torch.bool))
    start = weights(trainer)
    _, advantage = trainer.weigh(batch)
    learned = trainer.learn(batch, advantage)
    assert learned.sums[0] == 0.0 and learned.grad_norm == [0.0] and torch.equal(weights(trainer), start)
