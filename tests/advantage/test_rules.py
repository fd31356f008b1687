"""Every rule: worked numbers, special cases that must equal their parent, edges."""

import math

import numpy as np
import pytest
import torch

from fade_sim.advantage import RULES, BatchStats, describe, make, weight_table
from fade_sim.advantage.rules import NORMALIZE, Group, scale_constant
from fade_sim.advantage.table import batch_moments

STATIC = [name for name, rule in RULES.items() if not rule.adaptive]
# Two groups of 4 with 1 and 3 successes: mean 1/2, variance 1/4, of r - rbar 3/16, of the solve rates 1/16.
BATCH = BatchStats(np.array([1, 3]), np.array([4, 4]))
LN3 = math.log(3)  # an inverse temperature at which e^b = 3


def at(name, G, **params):
    """The rule at parameters that exist at group size G; a table of your own with all cells different."""
    rule = RULES[name]
    if name == "table":
        return make(name, weights=np.arange(2.0 * (G + 1)).reshape(G + 1, 2) - G)
    if rule.at_most and rule.at_most[0] not in params:
        key, offset = rule.at_most
        params[key] = max(1, min(rule.params[key].default, G - offset))
    return make(name, **params)


def table(name, G=4, **params):
    return weight_table(at(name, G, **params), G, batch=BATCH)


# One success of four: rbar = 1/4, variance 3/16, sample std sqrt(3/16 * 4/3) = 1/2.
ROOT3 = math.sqrt(3)
WORKED = [
    ("reinforce", {}, 1, 0),
    ("reinforce_pm1", {}, 1, -1),
    ("nsr", {}, 0, -1),
    ("w_reinforce", {"lam": 0.1}, 0.1, -1),
    ("baseline", {"b": 0.3}, 0.7, -0.3),
    ("rloo", {}, 1, -1 / 3),  # (3/4, -1/4) * 4/3
    ("rloo_verl", {}, 1, -1 / 3),
    ("dr_grpo", {}, 0.75, -0.25),
    ("asym_re", {"dv": -0.1}, 0.85, -0.15),  # dr_grpo + .1
    ("wapo", {}, 0.75, 0),
    ("asym_delta", {"delta": 0.5}, 0.75, -0.5),  # -1/4 / .5
    ("asym_delta", {"delta": math.inf}, 0.75, 0),
    ("asym_pure", {"delta": 0.5}, 0.6, -0.4),  # the line above over 3/4 + 1/4/.5 = 5/4
    ("asym_pure_loo", {"delta": 0.5}, 1, -0.5),  # x = 0: 1/1; x = 1/3: (1/3/.5) / (2/3 + 2/3) = 1/2
    ("grpo", {"eps": 0.0}, 1.5, -0.5),  # (3/4, -1/4) / (1/2)
    ("grpo", {"eps": 0.0, "ddof": 0}, ROOT3, -1 / ROOT3),  # / sqrt(3/16)
    ("grpo", {"eps": 0.5}, 0.75, -0.25),  # / (1/2 + 1/2)
    ("grpo_verl", {}, 0.75 / 0.500001, -0.25 / 0.500001),
    ("grpo_trl", {}, 0.75 / 0.5001, -0.25 / 0.5001),
    ("grpo_openrlhf", {}, 0.75 / 0.500000001, -0.25 / 0.500000001),
    ("grpo_open_instruct", {}, 0.75 / (ROOT3 / 4 + 1e-8), -0.25 / (ROOT3 / 4 + 1e-8)),
    ("grpo_nemo", {}, 1, -1 / 3 / (1 / ROOT3 + 1e-6)),  # others (0,0,0): not divided; (1,0,0): std sqrt(2/9 * 3/2)
    ("dapo", {"eps": 0.0}, 1.5, -0.5),
    ("f_grpo", {"gamma": 1.0, "eps": 0.0}, 1.125, -0.375),  # 3/4 * grpo
    ("qae", {"k": 0.4}, 4 / ROOT3, 0),  # 1/4 <= 1 - .4: hard, r/sd
    ("grpo_lead", {}, 1.5 / 1.000002 * (0.4 + 1.1 / (1 + math.exp(-5))), -0.5 / 1.000002 * 0.95),  # W(3/4) = .4 + 1.1/2
    ("asym_power_gu", {"b_pos": 0.9, "b_neg": 0.4}, 3**0.9, -(3**-0.4)),  # q/p = 3
    ("reinforce_pp", {"eps": 0.0}, 0.5 / math.sqrt(2 / 7), -0.5 / math.sqrt(2 / 7)),  # variance 1/4 * 8/7
    ("reinforce_pp_baseline", {"eps": 0.0}, 0.75 / math.sqrt(3 / 14), -0.25 / math.sqrt(3 / 14)),  # 3/16 * 8/7
    ("lite_ppo", {"eps": 0.0}, 0.75 / math.sqrt(2 / 7), -0.25 / math.sqrt(2 / 7)),
    ("gpg", {}, 0.75, -0.25),  # no uniform group: a = 1
    ("gpg", {"variant": "verl"}, 1.5, -0.5),  # a = 1/mean = 2
    # Beta fit 1/4/(1/16) - 1 = 3, so al = be = 1 + 3/2/3 = 3/2: density (8/pi) sqrt(3/16)
    ("bnpo", {}, 0.75 / (8 / math.pi * ROOT3 / 4), -0.25 / (8 / math.pi * ROOT3 / 4)),
    ("a_grae", {"eps": 1e-14}, 0.75, -0.5),  # P = 1/2, sqrt rbar = 1/2: factor 1/2 + 1/2; successes times P
    ("pass_at_k_s", {"k": 2}, 2, 2 / 3),  # failures 2 rho(3, 1, 1) = 2/3
    ("pass_at_k_loo", {"k": 2}, 2, -10 / 9),  # 2/3 - 2 * 4/3 * rho(3, 1, 2), rho = 1 - 1/3
    ("pass_at_k_loo1", {"k": 2}, 2, 0),  # 2 C(3,1)/C(3,1)
    ("pass_at_k_coded", {"k": 2}, 1, -1 / 3),  # w = 1
    ("pass_at_k_tang", {}, 4, 0),
    ("pass_at_k_chen", {"k": 2, "std": "off"}, 0.5, -1 / 6),  # rho = 1 - 3/6; 1/2 - C(2,1)/C(3,1)
    ("pass_at_k_chen", {"k": 2}, 0.5 / 0.500001, -1 / 6 / 0.500001),  # s = sqrt(1/4) + 1e-6
    ("mahdavi", {"k": 2}, 1.125, -0.375),  # 2 * 3/4 * dr_grpo
    ("mahdavi", {"k": 2, "base": "std"}, 1.5 * ROOT3, -1.5 / ROOT3),
    ("mahdavi", {"k": 2, "base": "rft"}, 1.5, 0),
    ("power", {"alpha": 2}, 9 / 16, -3 / 16),  # 3/4 * dr_grpo
    ("power", {"alpha": 1.5}, 0.75**1.5, -0.25 * 0.75**0.5),
    ("power", {"alpha": 2, "normalize": "peak"}, 27 / 16 * 9 / 16, -27 / 16 * 3 / 16),  # C = 27/16
    ("power_unbiased", {"alpha": 2}, 1, -1 / 3),  # C(3,2)/C(3,2); 1/3 of it
    ("power_asym", {"alpha": 2, "delta": 0.5}, 9 / 16, -3 / 8),
    ("log_mean_exp", {"beta": LN3}, 1 / LN3, -1 / 3 / LN3),  # (2/b) (3/4, -1/4) / (1 + 2/4)
    ("entropic_loo", {"beta": LN3}, 2, -0.4),  # 3/1 - 1; 1/(5/3) - 1
    ("maxrl", {}, 4, 0),
    ("maxrl_coded", {}, 3, -1),
    ("maxrl_std", {"eps": 0.0}, 4 * ROOT3, -4 / ROOT3),  # grpo (ddof 0) / (1/4)
    ("linear_r", {}, 3, -1),
    ("sqrt_r", {}, 3 / math.sqrt(0.75), -1 / math.sqrt(0.75)),
    ("tsallis", {"kappa": 0.5}, 2, 0),  # (1/4)^-.5
    ("tsallis", {"kappa": 0.5, "centred": "on"}, 1.5, -0.5),
    ("table", {}, -2, -1),  # row 1 of arange - 4
]


@pytest.mark.parametrize(("name", "params", "success", "failure"), WORKED)
def test_one_success_of_four(name, params, success, failure):
    np.testing.assert_allclose(table(name, **params)[1], [success, failure], rtol=1e-12, atol=1e-15)


def test_every_rule_has_a_worked_number():
    assert {row[0] for row in WORKED} == set(STATIC)


REDUCTIONS = [
    (("power", {"alpha": 1}), ("dr_grpo", {})),
    (("power_asym", {"alpha": 1, "delta": 1}), ("dr_grpo", {})),
    (("power_asym", {"alpha": 2.5, "delta": 1}), ("power", {"alpha": 2.5})),
    (("power_asym", {"alpha": 1, "delta": 0.3}), ("asym_delta", {"delta": 0.3})),
    (("asym_delta", {"delta": 1}), ("dr_grpo", {})),
    (("asym_delta", {"delta": math.inf}), ("wapo", {})),
    (("asym_pure", {"delta": 1}), ("dr_grpo", {})),  # n = (1-x) + x = 1
    (("asym_pure_loo", {"delta": 1}), ("rloo", {})),  # n = 1: w_S = (G-c)/(G-1), w_F = c/(G-1)
    (("power_unbiased", {"alpha": 1}), ("rloo", {})),
    (("baseline", {"b": 0}), ("reinforce", {})),
    (("baseline", {"b": 1}), ("nsr", {})),
    (("w_reinforce", {"lam": 1}), ("reinforce_pm1", {})),
    (("w_reinforce", {"lam": 0}), ("nsr", {})),
    (("asym_re", {"dv": 0}), ("dr_grpo", {})),
    (("f_grpo", {"gamma": 0}), ("grpo", {})),
    (("dapo", {}), ("grpo", {})),  # weights; the masses differ
    (("grpo_verl", {}), ("grpo", {"ddof": 1, "eps": 1e-6})),
    (("grpo_trl", {}), ("grpo", {"ddof": 1, "eps": 1e-4})),
    (("asym_power_gu", {"b_pos": 0.5, "b_neg": 0.5}), ("grpo", {"ddof": 0, "eps": 0})),
    (("pass_at_k_coded", {"k": 1}), ("rloo", {})),
    (("pass_at_k_loo1", {"k": 1}), ("reinforce", {})),
    (("pass_at_k_loo1", {"k": 8}), ("pass_at_k_tang", {})),  # k = G
    (("mahdavi", {"k": 1}), ("dr_grpo", {})),
    (("mahdavi", {"k": 3}), ("power", {"alpha": 3})),  # times 3, below
    (("maxrl", {}), ("tsallis", {"kappa": 1})),
    (("tsallis", {"kappa": 0, "centred": "on"}), ("dr_grpo", {})),
    (("tsallis", {"kappa": 1, "centred": "on"}), ("maxrl_coded", {})),
]


@pytest.mark.parametrize(("child", "parent"), REDUCTIONS)
def test_special_case_equals_its_parent(child, parent):
    factor = 3 if child == ("mahdavi", {"k": 3}) else 1
    np.testing.assert_allclose(table(child[0], 8, **child[1]), factor * table(parent[0], 8, **parent[1]),
                               rtol=1e-13, atol=1e-15)


def test_beta_to_zero_is_dr_grpo():
    # (e^b - 1)/b (r - rbar)/(1 + (e^b - 1) rbar) = (r - rbar)(1 + O(b)): off by at most b
    np.testing.assert_allclose(table("log_mean_exp", beta=1e-9), table("dr_grpo"), atol=1e-9)


def test_ddof_is_a_factor():
    # sample std = population std * sqrt(G/(G-1)): at G = 8 the weights differ by sqrt(7/8) = .935
    with_bessel, without = table("grpo", 8, ddof=1, eps=0), table("grpo", 8, ddof=0, eps=0)
    np.testing.assert_allclose(with_bessel, 0.9354143466934853 * without, rtol=1e-14)


def test_mixed_share_of_the_batch():
    # Groups of 4 with 1, 0 and 4 successes: 4 of 12 rollouts are in mixed groups, a = 3; means: verl 12/5
    batch = BatchStats([1, 0, 4], [4, 4, 4])
    np.testing.assert_allclose(weight_table(make("gpg"), 4, batch=batch)[1], [2.25, -0.75], rtol=1e-15)
    np.testing.assert_allclose(weight_table(make("gpg", variant="verl"), 4, batch=batch)[1], [1.8, -0.6], rtol=1e-15)


@pytest.mark.parametrize("G", [6, 10, 49, 100])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_counting_rules_against_binomial_coefficients(G, k):
    """Every row, from exact integers; where too few failures are left the weight is exactly 0, not a residue."""
    def rho(n, c):  # pass@k of n rollouts with c successes
        return 1 - math.comb(n - c, k) / math.comb(n, k)

    unbiased, loo1 = table("power_unbiased", G, alpha=k), table("pass_at_k_loo1", G, k=k)
    loo, plain = table("pass_at_k_loo", G, k=k), table("pass_at_k_s", G, k=k)
    for c in range(1, G):
        w = math.comb(G - c, k) / math.comb(G - 1, k)
        np.testing.assert_allclose(unbiased[c], [w, -c / (G - c) * w], rtol=1e-12, atol=0)
        right = k * math.comb(G - c, k - 1) / math.comb(G - 1, k - 1)
        np.testing.assert_allclose(loo1[c], [right, 0], rtol=1e-12, atol=0)
        failure = k * (1 - math.comb(G - 1 - c, k - 1) / math.comb(G - 1, k - 1))
        np.testing.assert_allclose(plain[c], [k, failure], rtol=1e-12, atol=0)
        right = k - k * G / (G - 1) * rho(G - 1, c - 1), failure - k * G / (G - 1) * rho(G - 1, c)
        np.testing.assert_allclose(loo[c], right, rtol=1e-11, atol=1e-13)


BALANCED = ["rloo", "dr_grpo", "grpo", "grpo_open_instruct", "f_grpo", "reinforce_pp_baseline", "lite_ppo", "gpg",
            "bnpo", "pass_at_k_coded", "pass_at_k_chen", "mahdavi", "power", "power_unbiased", "log_mean_exp",
            "maxrl_coded"]


@pytest.mark.parametrize("G", [2, 7, 64])
@pytest.mark.parametrize("name", BALANCED)
def test_balanced_rules_sum_to_zero_in_every_group(name, G):
    weights, c = table(name, G), np.arange(G + 1)
    total = c * weights[:, 0] + (G - c) * weights[:, 1]
    np.testing.assert_allclose(total, 0, atol=1e-12 * G * np.abs(weights).max())
    assert np.abs(weights).max() > 0.01 or (name, G) == ("pass_at_k_chen", 2)  # there k = G: identically 0


@pytest.mark.parametrize("delta", [0.3, 0.5, 1, 4, math.inf])
@pytest.mark.parametrize("name", ["asym_delta", "asym_pure", "power_asym"])
def test_sign_ratio_is_delta_in_every_group(name, delta):
    weights, c = table(name, 8, delta=delta), np.arange(9)
    success, failure = (c * weights[:, 0])[1:8], -((8 - c) * weights[:, 1])[1:8]
    np.testing.assert_allclose(success / delta, failure, rtol=1e-13)
    assert (success > 0).all()


# --- edges ------------------------------------------------------------------------------------------

UNIFORM = {  # text of `describe` -> (failures of an all-fail group, successes of an all-pass group), at the defaults
    "weight 0": (0, 0), "resampled until mixed": (0, 0), "all-fail 0, all-pass a full update": (0, 1),
    "all-fail -1, all-pass +1": (-1, 1), "all-fail -1, all-pass 0": (-1, 0), "all-fail -1, all-pass lam": (-1, 0.1),
    "all-fail -b, all-pass 1-b": (-0.5, 0.5), "-dv": (0.1, 0.1), "all-fail 0, all-pass k": (0, 4),
    "all-fail 0, all-pass -k/(G-1)": (0, -4 / 7), "all-pass 0 (k = 1: 1)": (0, 0),
    "updates like any other group": (-0.5 / math.sqrt(2 / 7), 0.5 / math.sqrt(2 / 7)),
    "0 (rft, k = 1: all-pass 1)": (0, 0), "all-fail 0, all-pass 1": (0, 1),
    "all-fail -1 (not verified), all-pass 0": (-1, 0), "all-fail 0, all-pass 1 (centred: 0)": (0, 1),
}


@pytest.mark.parametrize("name", [n for n in STATIC if n != "table"])
def test_uniform_groups_get_what_is_documented(name):
    weights = table(name, 8)
    expected = UNIFORM[describe(name)["uniform_groups"]]
    np.testing.assert_allclose((weights[0, 1], weights[8, 0]), expected, rtol=1e-7, atol=1e-300)  # reinforce_pp's eps


def test_uniform_groups_of_special_parameters():
    assert table("pass_at_k_loo1", 8, k=1)[8, 0] == 1 and table("mahdavi", 8, k=1, base="rft")[8, 0] == 1
    assert table("tsallis", 8, centred="on")[8, 0] == 0


@pytest.mark.parametrize("G", [1, 2, 3, 8, 49, 1024])
@pytest.mark.parametrize("name", STATIC)
def test_finite_at_every_group_size_and_no_weight_where_no_rollout_is(name, G):
    weights = table(name, G)
    assert weights.shape == (G + 1, 2) and np.isfinite(weights).all()
    assert weights[0, 0] == weights[G, 1] == 0
    assert not np.signbit(weights[weights == 0]).any()


@pytest.mark.parametrize("name", STATIC)
def test_singletons_get_what_is_documented(name):
    rule, weights = RULES[name], table(name, 1)
    text = describe(at(name, 1))["singletons"]
    if rule.singleton:
        assert text.startswith("a success 1, a failure 0" if name == "rloo_verl" else "a success 0.999999, a failure 0")
        np.testing.assert_allclose(weights, [[0, 0], [rule.singleton, 0]])
    elif rule.group_baseline:
        assert text == "weight 0" and not weights.any()
    else:
        assert text == "as any other rollout" and (weights.any() or name == "pass_at_k_s")


@pytest.mark.parametrize("G", [2, 3, 7, 10, 49, 100, 1000])
def test_uniform_groups_are_exactly_zero_at_any_size(G):
    for name in ("grpo", "power", "asym_pure_loo", "asym_pure", "power_asym", "log_mean_exp", "qae", "grpo_nemo"):
        weights = table(name, G)
        assert weights[0, 1] == 0 and weights[G, 0] == 0, name


@pytest.mark.parametrize("alpha", [1, 1.5, 2, 3, 10, 1000])
def test_extreme_gains_stay_finite(alpha):
    for delta in (1e-3, 1, math.inf):
        for normalize in NORMALIZE:
            weights = table("power_asym", 8, alpha=alpha, delta=delta, normalize=normalize)
            assert np.isfinite(weights).all() and (weights[8] == 0).all()


@pytest.mark.parametrize(("alpha", "peak", "mean", "half"), [
    (1, 1, 1, 1), (1.5, 2.5**2.5 / 4 / 1.5**1.5, 3.5 * 2.5 / 6, 2**0.5), (2, 27 / 16, 2, 2), (3, 256 / 108, 10 / 3, 4),
    (1000, 1001 * 1.001**1000 / 4, 1001 * 1002 / 6, 2.0**999),  # (1 + a)(1 + 1/a)^a / 4: a^a itself overflows
])
def test_scale_constants(alpha, peak, mean, half):
    got = [scale_constant(float(alpha), i) for i in range(4)]
    np.testing.assert_allclose(got, [1, peak, mean, half], rtol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.7, 3.0, 40.0])
def test_scale_constants_hold_what_they_say(alpha):
    """C p q^a has the maximum 1/4 (peak), the mean 1/6 (mean), the value 1/4 at 1/2 (half) of p q."""
    top = 1 / (1 + alpha)
    assert scale_constant(alpha, 1) * top * (1 - top) ** alpha == pytest.approx(1 / 4, rel=1e-13)
    beta = math.gamma(2) * math.gamma(alpha + 1) / math.gamma(alpha + 3)  # int p q^a dp
    assert scale_constant(alpha, 2) * beta == pytest.approx(1 / 6, rel=1e-13)
    assert scale_constant(alpha, 3) * 0.5 ** (alpha + 1) == pytest.approx(1 / 4, rel=1e-13)


# --- the same expression on torch -------------------------------------------------------------------

# torch's pow is another library's: it differs by an ulp or two, and a_grae amplifies that by 1/(1 - sqrt rbar).
POW = {"a_grae": 1e-12}
ARITHMETIC = ("reinforce", "reinforce_pm1", "nsr", "w_reinforce", "baseline", "rloo", "dr_grpo", "asym_re", "wapo",
              "asym_delta", "asym_pure", "asym_pure_loo", "gpg", "power_unbiased", "pass_at_k_s", "pass_at_k_loo",
              "pass_at_k_loo1", "pass_at_k_coded", "pass_at_k_tang", "log_mean_exp", "entropic_loo", "maxrl",
              "maxrl_coded", "linear_r", "reinforce_pp", "reinforce_pp_baseline", "lite_ppo")


@pytest.mark.parametrize("G", [3, 7, 8, 1024])
@pytest.mark.parametrize("name", [n for n in STATIC if n != "table"])
def test_expression_on_torch_equals_numpy(name, G):
    method, moments, mean = at(name, G), batch_moments(BATCH), np.arange(G + 1) / G
    for reward in (1.0, 0.0):
        r = np.full(G + 1, reward)
        ours = method.expression(r, Group(mean, mean * (1 - mean), 1 / G), moments)
        t = torch.tensor(mean)
        theirs = method.expression(torch.tensor(r), Group(t, t * (1 - t), 1 / G), moments)
        assert theirs.dtype == torch.float64
        if name in ARITHMETIC:
            np.testing.assert_array_equal(theirs.numpy(), ours)
        else:
            np.testing.assert_allclose(theirs.numpy(), ours, rtol=POW.get(name, 2e-15), atol=1e-300)


@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_fade_at_its_integer_gains_is_equal_to_the_bit_on_torch(alpha):
    mean = np.arange(9) / 8
    method, t = make("power_asym", alpha=alpha, delta=0.3), torch.tensor(mean)
    for r in (1.0, 0.0):
        ours = method.expression(r, Group(mean, mean * (1 - mean), 1 / 8))
        np.testing.assert_array_equal(method.expression(r, Group(t, t * (1 - t), 1 / 8)).numpy(), ours)


@pytest.mark.parametrize("alpha", [1, 1.5, 2, 2.9])
def test_expression_equals_the_piecewise_definition(alpha):
    """(1-rbar)^(alpha-1) (r - rbar), divided by delta where r < rbar: no sign trick, one rollout at a time."""
    for c in range(9):
        rbar = c / 8
        for r in (0.0, 1.0):
            d = r - rbar
            right = (1 - rbar) ** (alpha - 1) * (d if r >= rbar else d / 0.3)
            got = make("power_asym", alpha=alpha, delta=0.3).expression(r, Group(rbar, rbar * (1 - rbar), 1 / 8))
            assert got == right
