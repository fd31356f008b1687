"""Advantages of rollouts: values, dtypes, order, ragged groups, masks, refusals."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fade_sim.advantage import RULES, BatchStats, advantages, make, weight_table

DR, FADE = make("dr_grpo"), make("power_asym", alpha=2.5, delta=0.5)
STATIC = [name for name, rule in RULES.items() if not rule.adaptive and name != "table"]
SMALL = {"k": 2, "alpha": 2}  # parameters that exist at group size 3


def small(name):
    at_most = RULES[name].at_most
    return make(name, **({at_most[0]: SMALL[at_most[0]]} if at_most else {}))


# --- values -----------------------------------------------------------------------------------------


def test_fade_by_hand():
    # rbar = 1/4, alpha = 2, delta = .5: success .75 * .75, failures .75 * -.25 / .5
    out = advantages([1, 0, 0, 0], [3, 3, 3, 3], make("power_asym", alpha=2, delta=0.5))
    assert out.tolist() == [0.5625, -0.375, -0.375, -0.375]
    assert out.dtype == np.float64


def test_ragged_groups_by_hand():
    # groups: 5 -> (1, 0), 2 -> (1, 0, 0), -1 -> (1, 1); rbar 1/2, 1/3, 1
    out = advantages([1, 1, 0, 1, 0, 0, 1], [5, 2, 5, -1, 2, 2, -1], DR)
    np.testing.assert_allclose(out, [1 / 2, 2 / 3, -1 / 2, 0, -1 / 3, -1 / 3, 0], rtol=1e-15)


def test_rectangular_and_flat_agree():
    rewards = np.array([[1, 0, 0], [1, 1, 0]])
    flat = advantages(rewards.ravel(), [7, 7, 7, 9, 9, 9], FADE)
    np.testing.assert_array_equal(advantages(rewards, None, FADE), flat.reshape(2, 3))
    np.testing.assert_array_equal(advantages(rewards.tolist(), method=FADE), flat.reshape(2, 3))


@pytest.mark.parametrize("name", STATIC)
def test_every_group_gets_its_row_of_the_table(name):
    method, batch = small(name), BatchStats([1, 2, 3, 0], [3, 4, 3, 3])
    rewards = [1, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0]
    ids = [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    right = [weight_table(method, batch.sizes[g], batch=batch)[batch.successes[g], 1 - r]
             for r, g in zip(rewards, ids, strict=True)]
    np.testing.assert_array_equal(advantages(rewards, ids, method), right)  # batch: the groups given
    np.testing.assert_array_equal(advantages(rewards, ids, method, batch=batch), right)


def test_batch_of_other_groups_is_used():
    # one group of two, mean 1/2; batch of four groups of two, three of them uniform: a = 8/2
    out = advantages([1, 0], [0, 0], make("gpg"), batch=BatchStats([1, 0, 0, 2], [2, 2, 2, 2]))
    assert out.tolist() == [2.0, -2.0]


@pytest.mark.parametrize("ids", [
    [10**15, 10**15, -(10**15), -(10**15)], [2**63 - 1, 2**63 - 1, -(2**63), -(2**63)],
    np.array([2**64 - 1, 2**64 - 1, 0, 0], np.uint64), np.array([127, 127, -128, -128], np.int8),
])
def test_extreme_group_ids(ids):
    assert advantages([1, 0, 1, 1], ids, DR).tolist() == [0.5, -0.5, 0, 0]


# --- only (reward, group) matters -------------------------------------------------------------------

rollouts = st.lists(st.tuples(st.integers(-2, 3), st.booleans(), st.integers(0, 3).map(bool)), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(rollouts, st.randoms(use_true_random=False), st.sampled_from(STATIC))
def test_any_order_any_ids_any_masked_rows(rows, random, name):
    """Shuffled rows give shuffled advantages, new ids and removed invalid rows change nothing: to the bit."""
    method = small(name) if RULES[name].at_most is None else make(name, **{RULES[name].at_most[0]: 1})
    ids, rewards, valid = (np.array(x) for x in zip(*rows, strict=True))
    rewards = rewards.astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # singletons
        out = advantages(rewards, ids, method, valid=valid)
        order = list(range(len(rows)))
        random.shuffle(order)
        np.testing.assert_array_equal(advantages(rewards[order], ids[order], method, valid=valid[order]), out[order])
        np.testing.assert_array_equal(advantages(rewards, 1000 - 7 * ids, method, valid=valid), out)
        if valid.any():
            np.testing.assert_array_equal(advantages(rewards[valid], ids[valid], method), out[valid])
    assert not out[~valid].any() and np.isfinite(out).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), min_size=1, max_size=30),
       st.sampled_from([0.3, 0.5, 1.0, 3.0]))
def test_continuous_mass_ratio_is_delta_in_every_group(rows, delta):
    """Deviations from the mean sum to 0, so positive over negative mass is delta exactly: for any rewards."""
    ids, rewards = (np.array(x) for x in zip(*rows, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        out = advantages(rewards, ids, make("power_asym", alpha=1.5, delta=delta), continuous=True)
    for g in np.unique(ids):
        a = out[ids == g]
        assert a[a > 0].sum() == pytest.approx(-delta * a[a < 0].sum(), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("name", [n for n in STATIC if RULES[n].continuous and not RULES[n].reads_batch])
def test_continuous_equals_binary_on_binary_rewards(name):
    rewards, ids = [1, 0, 0, 1, 1, 1, 0, 0, 1], [0, 0, 0, 1, 1, 2, 2, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        binary = advantages(rewards, ids, make(name))
        continuous = advantages(rewards, ids, make(name), continuous=True)
    np.testing.assert_allclose(continuous, binary, rtol=1e-14, atol=1e-16)


def test_continuous_by_hand():
    # mean .5: deviations .5, -.2, -.3; (1 - .5)^1 times them, failures / .5
    out = advantages([1.0, 0.3, 0.2], [0, 0, 0], make("power_asym", alpha=2, delta=0.5), continuous=True)
    np.testing.assert_allclose(out, [0.25, -0.2, -0.3], rtol=1e-14)
    # grpo, ddof 0: std = sqrt((.25 + .04 + .09)/3)
    out = advantages([1.0, 0.3, 0.2], [0, 0, 0], make("grpo", ddof=0, eps=0), continuous=True)
    np.testing.assert_allclose(out, np.array([0.5, -0.2, -0.3]) / np.sqrt(0.38 / 3), rtol=1e-14)


@pytest.mark.parametrize("name", [n for n in STATIC if RULES[n].continuous and not RULES[n].reads_batch])
def test_continuous_group_without_valid_rollouts_is_silent(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = advantages([0.5, 0.2, 0.1, 0.9], [0, 0, 1, 1], make(name), valid=[1, 1, 0, 0], continuous=True)
    np.testing.assert_array_equal(out[:2], advantages([0.5, 0.2], [0, 0], make(name), continuous=True))
    assert out[2:].tolist() == [0, 0]


@pytest.mark.parametrize("name", [n for n in STATIC if not RULES[n].continuous or RULES[n].reads_batch])
def test_rules_of_binary_rewards_refuse_continuous(name):
    with pytest.raises(ValueError, match="rewards 0 and 1 only"):
        advantages([0.5, 0.2], [0, 0], make(name), continuous=True)


# --- kinds of array ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_floats_keep_their_dtype(dtype):
    out = advantages(np.array([1, 0, 0], dtype), [0, 0, 0], FADE)
    assert out.dtype == dtype
    # computed in float64 and rounded once
    np.testing.assert_array_equal(out, advantages([1, 0, 0], [0, 0, 0], FADE).astype(dtype))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int32, np.int64])
def test_numpy_ints_and_bools_become_float64(dtype):
    out = advantages(np.array([1, 0, 0, 0], dtype), np.array([0, 0, 0, 0]), DR)
    assert out.dtype == np.float64 and out.tolist() == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize(("dtype", "expected"), [
    (torch.float16, torch.float16), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32),
    (torch.float64, torch.float64), (torch.int64, torch.float32), (torch.uint8, torch.float32),
    (torch.bool, torch.float32),
])
def test_torch_in_torch_out(dtype, expected):
    rewards = torch.tensor([[1, 0, 0], [1, 1, 0]]).to(dtype)
    out = advantages(rewards, None, FADE)
    assert out.dtype == expected and out.shape == (2, 3) and out.device == rewards.device
    exact = torch.from_numpy(advantages([[1, 0, 0], [1, 1, 0]], None, FADE))
    assert torch.equal(out, exact.to(expected))


@pytest.mark.parametrize("name", STATIC)
def test_torch_float64_equals_numpy_to_the_bit(name):
    rewards = np.array([1.0, 0, 0, 1, 1, 0, 0, 0, 0])
    ids = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2]) if RULES[name].at_most is None else np.repeat([4, 1, 2], 3)
    valid = np.array([1, 1, 1, 1, 1, 1, 0, 1, 1], bool) if RULES[name].at_most is None else None
    ours = advantages(rewards, ids, small(name), valid=valid)
    theirs = advantages(torch.tensor(rewards), torch.tensor(ids), small(name),
                        valid=None if valid is None else torch.tensor(valid))
    np.testing.assert_array_equal(theirs.numpy(), ours)


def test_torch_graph_and_input_are_left_alone():
    rewards = torch.tensor([1.0, 0.0], requires_grad=True)
    out = advantages(rewards, [0, 0], DR)
    assert not out.requires_grad and out.tolist() == [0.5, -0.5]
    plain = np.array([1.0, 0.0])
    advantages(plain, [0, 0], DR)[:] = 9
    assert plain.tolist() == [1.0, 0.0]


def test_table_is_a_copy():
    weight_table(DR, 4)[:] = 9  # would poison the cache
    assert weight_table(DR, 4)[1].tolist() == [0.75, -0.25]


# --- refusals ---------------------------------------------------------------------------------------

BAD = [
    ([2, 2, 1], [0, 0, 0], {}, r"reward 0 is 2, expected 0 or 1 \(2 such rewards\)"),
    ([1, 0.5, 0], [0, 0, 0], {}, "reward 1 is 0.5, expected 0 or 1"),
    ([1, 0.9999999], [0, 0], {}, "reward 1 is 0.9999999, expected 0 or 1"),
    ([1, -1], [0, 0], {}, "reward 1 is -1, expected 0 or 1"),
    ([1, float("nan")], [0, 0], {}, "reward 1 is nan"),
    ([1, float("-inf")], [0, 0], {}, "reward 1 is -inf"),
    ([1, 1.5], [0, 0], {"continuous": True}, r"reward 1 is 1.5, expected a number in \[0, 1\]"),
    ([1, float("nan")], [0, 0], {"continuous": True}, "reward 1 is nan"),
    ([1, None], [0, 0], {}, "reward 1 is None"),
    ([1, "1"], [0, 0], {}, "reward 1 is '1'"),
    (np.array(["1", "0"]), [0, 0], {}, "rewards has dtype <U1"),
    (np.array([1, None]), [0, 0], {}, "rewards has dtype object"),
    (None, [0, 0], {}, "rewards has dtype object"),
    (np.array([1 + 1j, 0]), [0, 0], {}, "rewards has dtype complex128"),
    ([], [], {}, r"rewards has shape \(0,\)"),
    (1, [0], {}, r"rewards has shape \(\)"),
    ([1, 0, 0], [0, 0], {}, r"2 group ids of shape \(2,\) for rewards of shape \(3,\)"),
    ([1, 0], [0, 0, 0], {}, "3 group ids"),
    ([1, 0], None, {}, "pass group ids"),
    ([1, 0], [0.0, 0.0], {}, "group ids have dtype float64, expected integers"),
    ([1, 0], ["a", "a"], {}, "group ids have dtype <U1"),
    ([[1, 0], [1]], None, {}, "rows of different lengths"),
    ([[1, 0]], [0, 0], {}, "expected one per rollout"),
    ([1, 0], [0, 0], {"valid": [1]}, r"valid has shape \(1,\), expected \(2,\)"),
    ([1, 0], [0, 0], {"valid": [1, 2]}, "valid must be True or False"),
    ([1, 0], [0, 0], {"valid": [1, float("nan")]}, "valid must be True or False"),
]


@pytest.mark.parametrize(("rewards", "groups", "kwargs", "message"), BAD)
def test_bad_input_is_named(rewards, groups, kwargs, message):
    with pytest.raises(ValueError, match=message):
        advantages(rewards, groups, DR, **kwargs)


@pytest.mark.parametrize("method", [None, "dr_grpo", RULES["dr_grpo"]])
def test_not_a_method(method):
    with pytest.raises(ValueError, match=r"expected a Method, for example make\('dr_grpo'\)"):
        advantages([1, 0], [0, 0], method)
    with pytest.raises(ValueError, match="expected a Method"):
        weight_table(method, 4)


@pytest.mark.parametrize("name", ["fade", "scale_only", "scale_ema", "fade_unit"])
def test_adaptive_methods_must_be_resolved(name):
    for call in (lambda: advantages([1, 0], [0, 0], make(name)), lambda: weight_table(make(name), 4)):
        with pytest.raises(ValueError, match=f"{name} is adaptive"):
            call()


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None, "4", float("nan")])
def test_bad_group_size(size):
    with pytest.raises(ValueError, match=r"group_size is .*, expected an integer of at least 1"):
        weight_table(DR, size)


def test_group_too_small_for_the_rule():
    for name, params, size, message in (
        ("power_unbiased", {"alpha": 4}, 4, "alpha is 4, expected at most group_size - 1 = 3"),
        ("pass_at_k_loo1", {"k": 5}, 4, "k is 5, expected at most group_size = 4"),
        ("pass_at_k_loo", {"k": 4}, 4, "k is 4, expected at most group_size - 1 = 3"),
    ):
        with pytest.raises(ValueError, match=message):
            weight_table(make(name, **params), size)
        with pytest.raises(ValueError, match=message):
            advantages([1, 0, 0, 0], [0, 0, 0, 0], make(name, **params))


@pytest.mark.parametrize("batch", [([1], [0]), ([3], [2]), ([-1], [2]), ([1, 1], [2]), ([], []), (1, 2)])
def test_bad_batch(batch):
    with pytest.raises(ValueError, match="batch: expected integer successes and sizes"):
        weight_table(make("lite_ppo"), 2, batch=BatchStats(*batch))


def test_batch_rule_needs_its_batch():
    with pytest.raises(ValueError, match="lite_ppo reads the whole batch"):
        weight_table(make("lite_ppo"), 2)


def test_all_pairs_of_a_group_of_three_against_the_definition():
    """FADE over all 8 reward triples, one rollout at a time in plain Python."""
    alpha, delta = 2.5, 0.5
    for rewards in itertools.product((0, 1), repeat=3):
        rbar = sum(rewards) / 3
        right = [(1 - rbar) ** (alpha - 1) * ((r - rbar) if r >= rbar else (r - rbar) / delta) for r in rewards]
        np.testing.assert_allclose(advantages(rewards, [0, 0, 0], FADE), right, rtol=1e-15)
