"""Probes against hand counts, finite differences and explicit matrices."""

import numpy as np
import pytest
import torch

from fade_sim.advantage import make, weight_table
from llm.curvature import Product, lanczos
from llm.loss import Totals, token_weights
from llm.probes import mass_row
from llm.stability import measure_stability, rollout_gradients, score_grams


def test_masses_of_a_batch():
    """asym_delta(.5), G = 4, groups of c = 1, 0, 4, 2.

    c = 1: w_S = 3/4 on 1/4, w_F = (1/4)/.5 = 1/2 on 3/4: m = (3/16, 3/8). c = 2: (1/2 * 1/2, 1/2 * 1) = (1/4, 1/2).
    Uniform groups 0. Means over 4 groups: (7/64, 7/32), ratio 1/2. Shares: c = 1 has 9/16 of 21/16 = 3/7.
    """
    row = mass_row(weight_table(make("asym_delta", delta=0.5), 4), np.array([1, 0, 4, 2]))
    assert (row["m_S"], row["m_F"], row["sign_ratio"]) == pytest.approx((7 / 64, 7 / 32, 0.5))
    share = row["mass_by_solve_rate"]
    assert share["(0, 1/4]"] == pytest.approx(3 / 7) and share["(1/4, 1/2]"] == pytest.approx(4 / 7)
    assert share["0"] == share["1"] == 0.0


def test_masses_do_not_exist_where_nothing_is_mixed():
    row = mass_row(weight_table(make("dr_grpo"), 4), np.array([0, 4, 0]))
    assert row["m_S"] == row["m_F"] == 0.0 and row["sign_ratio"] is None


def test_shares_of_uniform_groups_and_missing_values(make_trainer):
    """A step whose rollouts all fail: entropy of successes and sign ratio are absent, nothing is NaN."""
    from fade_sim.store import to_json

    trainer = make_trainer(**{"reward.name": "integer", "train.record": 1})
    row = trainer.advance()
    assert (row["all_fail"], row["all_pass"], row["mixed"]) == (1.0, 0.0, 0.0)
    assert row["entropy_success"] is None and row["sign_ratio"] is None and row["rho_success"] is None
    assert row["entropy_failure"] == pytest.approx(row["entropy"], abs=1e-6)
    assert row["grad_norm"] == 0.0 and "NaN" not in to_json(row)


def test_predicted_entropy_slope_is_first_order_exact(make_trainer):
    """Error of the prediction over the step: halved when the learning rate is (second order: quartered against lr)."""
    error, size = [], []
    for lr in (4.0, 2.0, 1.0):
        row = make_trainer(**{"model.lr": lr, "train.record": 1}).advance()
        predicted, measured = row["entropy_slope_predicted"], row["entropy_slope_measured"]
        error.append(abs(predicted - measured) / lr)
        size.append(abs(predicted) / lr)
    assert size[0] == pytest.approx(size[2], rel=1e-3) and size[0] > 1e-4
    assert error[1] == pytest.approx(error[0] / 2, rel=0.2) and error[2] == pytest.approx(error[0] / 4, rel=0.25)


def test_rank_of_the_head_update(make_trainer):
    """A head moved by a b^T with b on the common direction: rank-1 energy 1, M1 all of it."""
    from llm.probes import Probe

    trainer = make_trainer(**{"train.record": 1})
    batch = trainer.collect()
    probe = Probe(trainer.policy, batch, trainer.settings, trainer.ranks)
    common = np.linalg.eigh(probe.hidden[0])[1][:, -1]
    with torch.no_grad():
        trainer.policy.head.weight += torch.outer(torch.arange(trainer.policy.head.weight.shape[0]).float(),
                                                  torch.from_numpy(common).float())
    row = probe._head(trainer.first_head)
    assert row["rank1"] == pytest.approx(1.0, abs=1e-5) and row["M1_share"] == pytest.approx(1.0, abs=1e-5)
    assert row["effective_rank"] == pytest.approx(1.0, abs=1e-3)


# --- stability -----------------------------------------------------------------------------------------


def explicit_scores(trainer, rollouts) -> np.ndarray:
    """Gradient of the log-probability of each rollout, one backward pass each, (N, D)."""
    rows = []
    for i in range(len(rollouts)):
        trainer.policy.zero_grad(set_to_none=True)
        trainer.policy.score(rollouts.select(slice(i, i + 1)), 1.0, 64).logprob.sum().backward()
        rows.append(torch.cat([p.grad.flatten() for p in trainer.policy.trainable().values()]).numpy())
    trainer.policy.zero_grad(set_to_none=True)
    return np.array(rows, dtype=np.float64)


def test_gradients_of_single_rollouts(make_trainer):
    """All at once, with prompts of two lengths padded: equal to one backward pass each."""
    trainer = make_trainer()
    rollouts = trainer.sample([0, 1, 2])
    got = rollout_gradients(trainer.policy, rollouts, 1.0)
    flat = torch.cat([g.flatten(1) for g in got.values()], dim=1).double().numpy()
    expected = explicit_scores(trainer, rollouts)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(flat, expected, atol=2e-5)


@pytest.mark.parametrize("denominator", ["constant", "token_mean", "sequence_mean"])
def test_lambda_is_the_eigenvalue_of_the_feedback_matrix(make_trainer, denominator):
    """lr * lag * lambda_max of mean_x (m_F - m_S)(x) mean_i N w_i s_i s_i^T, formed in full from explicit scores.

    With 2 G rollouts of a prompt and c successes the masses are hypergeometric averages; here they come
    from counting all groups of 2 of 4.
    """
    from itertools import combinations

    from scipy.sparse.linalg import eigsh

    trainer = make_trainer(**{"train.group_size": 2, "train.prompts": 8, "probe.rollouts": 32, "model.lr": 0.3,
                              "loss.denominator": denominator})
    table = weight_table(make("asym_delta", delta=0.3), 2)
    seen = {}
    collect = trainer.roller.collect

    def spy(*args):
        seen["rollouts"] = collect(*args)
        return seen["rollouts"]

    object.__setattr__(trainer.roller, "collect", spy)
    got = measure_stability(trainer, table, age=7.0)
    r = seen["rollouts"]
    assert len(r) == 32
    weight = token_weights(r.length, Totals(int(r.length.sum()), 32, 32), denominator, 5).double().numpy()
    scores = explicit_scores(trainer, r) * np.sqrt(32 * weight)[:, None]
    A = np.zeros((scores.shape[1],) * 2)
    for x in range(8):
        mine, reward = scores[4 * x : 4 * x + 4], r.reward[4 * x : 4 * x + 4].numpy().astype(int)
        groups = [reward[list(pair)] for pair in combinations(range(4), 2)]
        bias = np.mean([-sum(table[g.sum(), 1 - v] for v in g) / 2 for g in groups])  # m_F - m_S
        A += bias * mine.T @ mine / 4 / 8
    assert got["Lambda_in_sample"] == pytest.approx(0.3 * 7 * eigsh(A, k=1, which="LA")[0][0], rel=1e-3)
    assert got["Lambda_in_sample"] > 0.01 and got["alarm"] == (got["Lambda"] > 1)
    assert 0 <= got["Lambda_head_in_sample"] <= got["Lambda_in_sample"] * (1 + 1e-6)  # bias >= 0: a principal part


def test_an_unbiased_rule_has_no_lambda(make_trainer):
    """dr_grpo: m_S = m_F in every group, so the Fisher form vanishes (the Hessian form need not)."""
    trainer = make_trainer(**{"probe.rollouts": 32})
    got = measure_stability(trainer, weight_table(make("dr_grpo"), 4), age=10.0)
    assert abs(got["Lambda_in_sample"]) < 1e-9 and got["alarm"] is False


def test_adam_counts_its_own_step_lengths(make_trainer):
    """With second moments all equal to v, AdamW moves 1/sqrt(v) per unit gradient: Grams are SGD's times that."""
    trainer = make_trainer(**{"train.optimizer": "adam", "model.lr": 0.01})
    rollouts = trainer.sample([0, 1])
    one = torch.ones(len(rollouts), dtype=torch.float64)
    plain = score_grams(make_trainer(), rollouts, one)[""]
    for state in trainer.optimiser.torch.state.values():
        state["step"] += 1
        state["exp_avg_sq"] += 0.001 * 4.0  # v = .004/(1 - .999) = 4
    np.testing.assert_allclose(score_grams(trainer, rollouts, one)[""], plain / 2.0, rtol=1e-4, atol=1e-6)


# --- exact feedback ------------------------------------------------------------------------------------


def test_lanczos_finds_the_largest_eigenvalue():
    """Diagonal 200..1 and a negative outlier of larger size: 200, not -500."""
    d = torch.arange(1.0, 201.0, dtype=torch.float64)
    d[0] = -500.0
    value, vector = lanczos(lambda v: d * v, 200, steps=60)
    assert value == pytest.approx(200.0, rel=1e-6) and abs(vector[-1]) == pytest.approx(1.0, abs=1e-4)


def test_the_feedback_matrix_is_the_derivative_of_the_stale_update(make_trainer):
    """H v against central differences of the update's gradient, and the top eigenvalue against the dense matrix."""
    trainer = make_trainer(**{"model.lora_rank": 1, "model.lr": 20.0})
    trainer.advance()
    r = trainer.sample([0, 1, 2, 3])
    coefficient = torch.linspace(-1, 1, len(r), dtype=torch.float64)
    parameters = list(trainer.policy.trainable().values())
    size = sum(p.numel() for p in parameters)

    def gradient():
        scores = trainer.policy.score(r, 1.0, 64).logprob
        row = torch.arange(len(r)).repeat_interleave(r.length)
        value = (scores * coefficient.float()[row]).sum() / len(r)
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]).double()

    v = torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pieces = [x.view_as(p).float() for x, p in zip(torch.split(v, [p.numel() for p in parameters]), parameters,
                                                   strict=True)]
    ends, step = [], 1e-3
    for move in (step, -2 * step, step):  # there, to the other side, and back
        with torch.no_grad():
            for p, x in zip(parameters, pieces, strict=True):
                p += move * x
        ends.append(gradient())
    numeric = (ends[0] - ends[1]) / (2 * step)
    product = Product(trainer.policy, r, coefficient, 1.0, None)
    assert (product(v) - numeric).norm() < 0.02 * numeric.norm() and numeric.norm() > 1e-4
    dense = torch.stack([product(e) for e in torch.eye(size, dtype=torch.float64)])
    assert torch.allclose(dense, dense.T, atol=1e-6)
    assert lanczos(product, size)[0] == pytest.approx(torch.linalg.eigvalsh(dense)[-1].item(), rel=0.02)


def test_the_exact_lambda_of_an_unbiased_rule_is_not_zero(make_trainer):
    trainer = make_trainer(**{"probe.rollouts": 32, "probe.exact": True, "train.optimizer": "adam", "model.lr": 0.01})
    trainer.advance()
    got = measure_stability(trainer, weight_table(make("dr_grpo"), 4), age=10.0)
    assert abs(got["Lambda_in_sample"]) < 1e-9 < 1e-4 < got["Lambda_exact_in_sample"]
