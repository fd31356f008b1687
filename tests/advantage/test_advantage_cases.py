"""Faults that advantage code is known for, each with its right value."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch

from fade_sim.advantage import RULES, BatchStats, advantages, controller, make, weight_table

DR, RLOO = make("dr_grpo"), make("rloo")


def close(out, right):
    np.testing.assert_allclose(out, right, rtol=0, atol=1e-15)


def test_adv_05_gathered_windows_mix_prompts():
    # groups a = (1, 0), b = (1, 1); consecutive windows would give [0, 0, -.5, .5]
    close(advantages([1, 1, 0, 1], [0, 1, 0, 1], DR), [0.5, 0, -0.5, 0])


def test_adv_06_tiled_prompts():
    # ids tiled: group 0 = (1, 1, 0), group 1 = (0, 1, 0)
    right = [1 / 3, -1 / 3, 1 / 3, 2 / 3, -2 / 3, -1 / 3]
    close(advantages([1, 0, 1, 1, 0, 0], [0, 1, 0, 1, 0, 1], DR), right)


def test_adv_07_ids_unique_per_rollout():
    """The raw reward would come back as the advantage; here a batch of singletons weighs 0 and says so."""
    close(advantages([1, 0, 0, 1], [10, 10, 10, 10], DR), [0.5, -0.5, -0.5, 0.5])
    with pytest.warns(UserWarning, match="4 of 4 groups have a single rollout.*unique per rollout") as caught:
        out = advantages([1, 0, 0, 1], [10, 11, 12, 13], DR)
    assert out.tolist() == [0, 0, 0, 0] and len(caught) == 1
    assert caught[0].filename == __file__  # points at the caller


@pytest.mark.parametrize("reward", [0.0, 1.0])
@pytest.mark.parametrize("kind", [np.array, lambda x: torch.tensor(x, dtype=torch.float32)])
def test_adv_08_one_generation_per_prompt(reward, kind):
    """A sample std of one number is NaN; the advantage is 0."""
    for name in ("grpo", "grpo_trl", "grpo_openrlhf", "rloo", "dr_grpo", "power", "grpo_nemo"):
        with pytest.warns(UserWarning, match="1 of 1 groups"):
            assert advantages(kind([reward]), [0], make(name)).tolist() == [0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a constant baseline needs no other rollout
        assert advantages(kind([reward]), [0], make("baseline", b=0.25)).tolist() == [reward - 0.25]


def test_adv_09_loop_and_vectorised_singletons():
    """rloo of (1, 0, 0) and a lone 1: [1, -.5, -.5, 0] from every backend; rloo_verl keeps the raw 1."""
    rewards, ids = [1, 0, 0, 1], [0, 0, 0, 1]
    for method, lone in ((RLOO, 0.0), (make("rloo_verl"), 1.0)):
        right = [1, -0.5, -0.5, lone]
        with pytest.warns(UserWarning, match="1 of 2 groups.*raw reward" if lone else "1 of 2 groups.*weight 0"):
            from_numpy = advantages(rewards, ids, method)
            from_torch = advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(ids), method)
            continuous = advantages(rewards, ids, method, continuous=True)
        close(from_numpy, right)
        assert from_torch.tolist() == from_numpy.tolist() and from_numpy[3] == lone
        close(continuous, right)
        assert weight_table(method, 1).tolist() == [[0, 0], [lone, 0]]  # what compiled code reads


def test_adv_10_rejected_rollout_leaves_the_baseline():
    # rbar of the three that count is 1/3; leaking it would give +-.5
    out = advantages([1, 0, 1, 0], [0, 0, 0, 0], DR, valid=[True, True, False, True])
    close(out, [2 / 3, -1 / 3, 0, -1 / 3])
    assert out[2] == 0
    assert advantages([1, 0], [0, 0], DR, valid=[False, False]).tolist() == [0, 0]


@pytest.mark.parametrize("value", [0.7, 0.2, 0.1, 1 / 3, 0.999])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_adv_11_identical_rewards_cancel_exactly(value, dtype):
    """Seven times .7 in float32: a residue of the mean over std + 1e-6 came out as +.056."""
    for name in ("grpo", "grpo_openrlhf", "dr_grpo", "rloo", "power_asym"):
        out = advantages(np.full(7, value, dtype), np.zeros(7, int), make(name), continuous=True)
        assert out.tolist() == [0.0] * 7
    assert advantages(np.full(7, value, dtype), [0] * 7, make("grpo", eps=0), continuous=True).tolist() == [0.0] * 7


def test_adv_12_leave_one_out_std():
    """The only success sees siblings of std 0: dividing by eps gave 1e6."""
    close(advantages([1, 0, 0, 0, 0], [0] * 5, RLOO), [1, -0.25, -0.25, -0.25, -0.25])
    # with leave-one-out std: a failure sees (1,0,0,0), mean 1/4, std sqrt(3/16 * 4/3) = 1/2
    out = advantages([1, 0, 0, 0, 0], [0] * 5, make("grpo_nemo"))
    np.testing.assert_allclose(out, [1, -0.5, -0.5, -0.5, -0.5], rtol=3e-6)  # eps 1e-6 on 1/2


def test_adv_13_one_pass_variance():
    """One 0 and seven .6: E[x^2] - E[x]^2 in float32 left a std of 1.9e-4 for the seven, advantage -3200."""
    rewards = np.array([0.0] + [0.6] * 7, np.float32)
    seven = advantages(rewards[1:], [0] * 7, make("grpo"), continuous=True)
    assert seven.tolist() == [0.0] * 7
    # all eight: x = float32(.6), mean 7x/8, deviations -7x/8 and x/8, sample std x/sqrt(8)
    out = advantages(rewards, [0] * 8, make("grpo", eps=0), continuous=True)
    np.testing.assert_allclose(out, [-7 / 8**0.5] + [1 / 8**0.5] * 7, rtol=1e-6)
    with pytest.raises(ValueError, match="grpo_nemo is defined for rewards 0 and 1 only"):
        advantages(rewards, [0] * 8, make("grpo_nemo"), continuous=True)


def test_adv_14_micro_batch_smaller_than_the_group():
    """By id a group may arrive in pieces of one call; each piece alone would give [.5, -.5, 0, 0]."""
    close(advantages([1, 0, 0, 0], [3, 3, 3, 3], DR), [0.75, -0.25, -0.25, -0.25])
    with pytest.raises(ValueError, match="expected one per rollout"):
        advantages([[1, 0], [0, 0]], [3, 3, 3, 3], DR)  # no silent reshape
    with pytest.raises(ValueError, match="rows of different lengths"):
        advantages([[1, 0, 0], [0]], None, DR)


@pytest.mark.parametrize(("size", "share"), [(2, 0.68), (4, 0.4112), (8, 0.1678)])
def test_adv_15_share_of_groups_without_signal(size, share):
    """p^G + q^G at p = .2, by enumeration of all groups; phat still learns from them."""
    rewards = np.array(list(itertools.product((0, 1), repeat=size)))
    chance = 0.2 ** rewards.sum(1) * 0.8 ** (size - rewards.sum(1))
    silent = ~advantages(rewards, None, DR).any(axis=1)
    assert chance[silent].sum() == pytest.approx(share, abs=5e-5)
    assert chance[silent].sum() == pytest.approx(0.2**size + 0.8**size, rel=1e-12)
    assert controller.update(controller.init(1.0), 0.0, 1.0).phat == 0.49  # .98 * .5


def test_adv_16_sample_or_population_std():
    # (1, 0): sample std .7071, population std .5
    close(advantages([1, 0], [0, 0], make("grpo", ddof=1, eps=0)), [0.5**0.5, -(0.5**0.5)])
    close(advantages([1, 0], [0, 0], make("grpo", ddof=0, eps=0)), [1, -1])
    assert RULES["grpo"].params["ddof"].default == 1
    # (1, 1, 2) is refused; the same shape in [0, 1]: sample std gives [-.5774, -.5774, 1.1547]
    with pytest.raises(ValueError, match="reward 2 is 2"):
        advantages([1, 1, 2], [0, 0, 0], make("grpo"))
    for ddof, right in ((1, [-0.5774, -0.5774, 1.1547]), (0, [-0.7071, -0.7071, 1.4142])):
        out = advantages([0, 0, 1], [0, 0, 0], make("grpo", ddof=ddof, eps=0))
        np.testing.assert_allclose(out, right, atol=5e-5)


def test_adv_17_which_grpo():
    rewards, ids = [1] + [0] * 7, [0] * 8
    close(advantages(rewards, ids, DR)[:2], [0.875, -0.125])
    out = advantages(rewards, ids, make("grpo", eps=0))[:2]
    np.testing.assert_allclose(out, [2.4749, -0.3536], atol=5e-5)  # over sqrt(7/64 * 8/7)


def test_adv_18_centred_per_prompt_not_per_batch():
    # rbar 3/4 and 1/4; centring over the batch gives +-.5 everywhere
    out = advantages([1, 1, 1, 0, 0, 0, 0, 1], [0] * 4 + [1] * 4, DR)
    close(out, [0.25, 0.25, 0.25, -0.75, -0.25, -0.25, -0.25, 0.75])


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("continuous", [False, True])
def test_adv_19_one_non_finite_reward(bad, continuous):
    with pytest.raises(ValueError, match="reward 1 is"):
        advantages([1, bad, 0], [0, 0, 0], DR, continuous=continuous)
    out = advantages([1, bad, 0], [0, 0, 0], DR, valid=[True, False, True], continuous=continuous)
    assert out.tolist() == [0.5, 0, -0.5]


def test_adv_20_one_reward_for_the_whole_batch():
    with pytest.raises(ValueError, match=r"4 group ids .* for rewards of shape \(1,\), expected one per rollout"):
        advantages([1.0], [0, 0, 0, 0], DR)


@pytest.mark.parametrize("rewards", [
    [True, False, False, False], [1, 0, 0, 0], [1.0, 0.0, 0.0, 0.0], (True, 0, 0.0, np.int64(0)),
    np.array([True, False, False, False]), np.array([1, 0, 0, 0], np.int32), np.array([1, 0, 0, 0], np.float32),
    torch.tensor([True, False, False, False]), torch.tensor([1, 0, 0, 0]), torch.tensor([1.0, 0, 0, 0]),
], ids=lambda r: f"{type(r).__name__}-{getattr(r, 'dtype', '')}")
def test_adv_21_integer_and_boolean_rewards(rewards):
    assert advantages(rewards, [0, 0, 0, 0], DR).tolist() == [0.75, -0.25, -0.25, -0.25]


def test_adv_22_rollout_in_several_segments():
    """The unit of the baseline is the rollout: one row of it counts. Per segment the baseline would be 3/4."""
    out = advantages([1, 1, 1, 0], [0, 0, 0, 0], DR, valid=[True, False, False, True])
    assert out.tolist() == [0.5, 0, 0, -0.5]


def test_adv_23_only_homogeneous_groups():
    rewards, ids = [1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no division by 0 either
        for name in ("dr_grpo", "grpo", "power_asym", "dapo", "gpg", "bnpo", "lite_ppo", "reinforce_pp_baseline"):
            assert advantages(rewards, ids, make(name)).tolist() == [0] * 6
    # phat moves by the solve rate before any filter: .98 * .5 + .02 * 2/3
    assert controller.update(controller.init(1.0), 2 / 3, 1.0).phat == pytest.approx(0.5033333333333333, rel=1e-15)


def test_adv_24_policy_term_of_a_solved_group():
    assert advantages([1, 1], [0, 0], DR).tolist() == [0, 0]


def test_adv_25_edge_values():
    fade = make("power_asym", alpha=2, delta=0.5)
    assert advantages([1, 0, 0, 0], [0] * 4, fade).tolist() == [0.5625, -0.375, -0.375, -0.375]
    with pytest.raises(ValueError, match="reward 0 is 2, expected 0 or 1"):  # 1 - rbar < 0 under a power: NaN
        advantages([2, 2, 1], [0] * 3, make("power_asym", alpha=1.5, delta=1))
    with pytest.raises(ValueError, match="reward 0 is -1, expected 0 or 1"):
        advantages([-1, 1, -1], [0] * 3, fade)
    assert advantages([1, 1, 1], [0] * 3, make("power_asym", alpha=1, delta=0.3)).tolist() == [0, 0, 0]  # 0^0 times 0
    with pytest.raises(ValueError, match=r"alpha is 0.5, expected a number at least 1"):  # 0^(-1/2) at c = G
        make("power_asym", alpha=0.5)


def test_batch_std_of_a_single_rollout_is_finite():
    """A batch of one rollout has no spread: ddof 1 would divide by 0."""
    for name in ("reinforce_pp", "lite_ppo", "reinforce_pp_baseline", "gpg", "bnpo", "a_grae"):
        assert np.isfinite(weight_table(make(name), 4, batch=BatchStats([1], [1]))).all()
