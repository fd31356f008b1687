"""Masses: closed form = exact binomial sum = enumeration of every group, and the printed figures."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from fade_sim.advantage import RULES, BatchStats, advantages, make, weight_table
from fade_sim.theory import closed_masses, masses, population_masses, scale, sign_ratio

GRID = np.array([0.0, 1e-6, 0.02, 0.1, 0.37, 0.5, 0.8, 0.95, 1 - 1e-6, 1.0])
INSIDE = GRID[1:-1]
BATCH = BatchStats([1, 3, 0, 8], [8, 8, 8, 8])


def params(name, G):
    """Parameters that exist at group size G."""
    rule = RULES[name]
    if name == "table":
        return {"weights": np.sin(np.arange(2.0 * (G + 1))).reshape(G + 1, 2)}
    if rule.at_most:
        key, offset = rule.at_most
        return {key: max(1, min(rule.params[key].default, G - offset))}
    return {}


def static(G):
    return [make(name, **params(name, G)) for name, rule in RULES.items() if not rule.adaptive]


def by_enumeration(method, G, p):
    """(m_S, m_F) from every one of the 2^G reward tuples, weighed by `advantages`: no table, no binomial."""
    rewards = np.array(list(itertools.product((0.0, 1.0), repeat=G)))
    out = advantages(rewards, None, method, batch=BATCH)
    chance = p ** rewards.sum(1) * (1 - p) ** (G - rewards.sum(1))
    if method.rule.mixed_only:
        chance[[0, -1]] = 0  # (0, ..., 0) and (1, ..., 1) are drawn again
        chance /= chance.sum()
    return chance @ (out * rewards).mean(1), -chance @ (out * (1 - rewards)).mean(1)


@pytest.mark.parametrize("G", [5, 6])
@pytest.mark.parametrize("name", [n for n, r in RULES.items() if not r.adaptive])
def test_exact_sum_is_the_enumeration(name, G):
    method = make(name, **params(name, G))
    got = masses(method, G, GRID[1:-1], batch=BATCH)
    right = np.array([by_enumeration(method, G, p) for p in INSIDE]).T
    size = np.abs(weight_table(method, G, batch=BATCH)).max()
    np.testing.assert_allclose(got, right, rtol=1e-12, atol=1e-14 * size)


CLOSED = [
    ("reinforce", {}), ("reinforce_pm1", {}), ("nsr", {}), ("baseline", {"b": 0.3}), ("rloo", {}), ("dr_grpo", {}),
    ("asym_delta", {"delta": 0.3}), ("asym_delta", {"delta": math.inf}), ("power", {"alpha": 1}),
    ("power", {"alpha": 2}),
    ("power", {"alpha": 3, "normalize": "peak"}), ("power", {"alpha": 7}),
    ("power", {"alpha": 40, "normalize": "half"}),
    ("power_asym", {"alpha": 2, "delta": 0.3}), ("power_asym", {"alpha": 3, "delta": math.inf, "normalize": "mean"}),
    ("power_unbiased", {"alpha": 1}), ("power_unbiased", {"alpha": 3}),
]


@pytest.mark.parametrize("G", [1, 2, 4, 8, 64, 1024])
@pytest.mark.parametrize(("name", "values"), CLOSED)
def test_closed_form_is_the_exact_sum(name, values, G):
    method = make(name, **values)
    if name == "power_unbiased" and 1 < G <= values["alpha"]:
        with pytest.raises(ValueError, match="expected at most group_size - 1"):
            closed_masses(method, G, 0.5)
        return
    # relative 3e-13: binomial probabilities of G = 1024 carry about 1e-13; absolute far below any mass in use
    np.testing.assert_allclose(masses(method, G, GRID), closed_masses(method, G, GRID), rtol=3e-13, atol=1e-25)


def test_closed_form_where_there_is_none():
    table = make("table", weights=np.ones((5, 2)))
    for method in (make("grpo"), make("asym_pure"), make("power", alpha=1.5), make("lite_ppo"), table):
        assert closed_masses(method, 4, 0.5) is None
    with pytest.raises(ValueError, match="fade is adaptive"):
        closed_masses(make("fade"), 4, 0.5)


def test_thousand_rollouts_in_exact_arithmetic():
    """power(2.5)-like weights have no closed form: sum them in rationals at p = 3/8, G = 1024."""
    G, p = 1024, Fraction(3, 8)
    pmf = [math.comb(G, c) * p**c * (1 - p) ** (G - c) for c in range(G + 1)]
    for method in (make("power", alpha=2.5), make("grpo"), make("maxrl_coded"), make("asym_pure_loo", delta=0.3)):
        table = weight_table(method, G)
        m_S = float(sum(w * Fraction(c, G) * Fraction(table[c, 0]) for c, w in enumerate(pmf)))
        m_F = float(-sum(w * Fraction(G - c, G) * Fraction(table[c, 1]) for c, w in enumerate(pmf)))
        np.testing.assert_allclose(masses(method, G, 0.375), (m_S, m_F), rtol=1e-13)


def test_by_hand():
    # G = 2, p = 1/4: one success with chance 3/8; (1/2)(1/2) * 3/8 = 3/32 = (1 - 1/2) * 3/16
    assert masses(make("dr_grpo"), 2, 0.25) == pytest.approx((3 / 32, 3 / 32), rel=1e-15)
    # power_asym(2, .5), G = 2: w_S = 1/4, w_F = 1/2: 3/8 * 1/2 * (1/4, 1/2)
    assert masses(make("power_asym", alpha=2, delta=0.5), 2, 0.25) == pytest.approx((3 / 64, 3 / 32), rel=1e-15)
    # population, p = 1/4: power_asym(2, .5): 1/4 * 9/16, over .5
    assert population_masses(make("power_asym", alpha=2, delta=0.5), 0.25) == pytest.approx((9 / 64, 9 / 32), rel=1e-15)


# --- every other closed form in its source ----------------------------------------------------------


def _coded(G, k, p):
    q = 1 - p
    return p * ((G - k) * q**k + (k - 1) * q ** (k - 1)) / (G - 1)


FINITE = [  # name, parameters, (m_S, m_F) at group size G
    ("w_reinforce", {"lam": 0.1}, lambda G, p, q: (0.1 * p, q)),
    ("asym_re", {"dv": -0.1}, lambda G, p, q: ((1 - 1 / G) * p * q + 0.1 * p, (1 - 1 / G) * p * q - 0.1 * q)),
    ("wapo", {}, lambda G, p, q: ((1 - 1 / G) * p * q, 0)),
    ("pass_at_k_s", {"k": 3}, lambda G, p, q: (3 * p, -3 * q * (1 - q**2))),
    ("pass_at_k_loo", {"k": 3}, lambda G, p, q: (3 * p * (1 - G / (G - 1) * (1 - q**3)),
                                                3 * q * (G / (G - 1) * (1 - q**3) - (1 - q**2)))),
    ("pass_at_k_loo1", {"k": 3}, lambda G, p, q: (3 * p * q**2, 0)),
    ("pass_at_k_coded", {"k": 3}, lambda G, p, q: (_coded(G, 3, p), _coded(G, 3, p))),
    ("pass_at_k_tang", {}, lambda G, p, q: (G * p * q ** (G - 1), 0)),
    ("pass_at_k_chen", {"k": 3, "std": "off"}, lambda G, p, q: ((1 - 3 / G) * p * q**3,) * 2),
    ("maxrl", {}, lambda G, p, q: (1 - q**G, 0)),
    ("maxrl_coded", {}, lambda G, p, q: (q - q**G, q - q**G)),
    ("linear_r", {}, lambda G, p, q: (q - q**G, q)),
    ("rloo_verl", {}, lambda G, p, q: (p * q, p * q)),
]


@pytest.mark.parametrize("G", [5, 8, 32])
@pytest.mark.parametrize(("name", "values", "form"), FINITE)
def test_finite_group_formula(name, values, form, G):
    right = [x + 0 * GRID for x in form(G, GRID, 1 - GRID)]
    np.testing.assert_allclose(masses(make(name, **values), G, GRID), right, rtol=1e-12, atol=1e-14)


KAP = math.expm1(2.0)
POPULATION = [  # name, parameters, (m_S, m_F) as G -> inf
    ("reinforce", {}, lambda p, q: (p, 0)), ("nsr", {}, lambda p, q: (0, q)),
    ("dr_grpo", {}, lambda p, q: (p * q, p * q)),
    ("rloo", {}, lambda p, q: (p * q, p * q)), ("grpo", {"eps": 0}, lambda p, q: ((p * q) ** 0.5,) * 2),
    ("dapo", {"eps": 0}, lambda p, q: ((p * q) ** 0.5,) * 2),
    ("asym_delta", {"delta": 0.3}, lambda p, q: (p * q, p * q / 0.3)),
    ("asym_pure", {"delta": 0.3}, lambda p, q: (p * q / (q + p / 0.3), p * q / 0.3 / (q + p / 0.3))),
    ("asym_pure_loo", {"delta": 0.3}, lambda p, q: (p * q / (q + p / 0.3), p * q / 0.3 / (q + p / 0.3))),
    ("power", {"alpha": 2.5}, lambda p, q: (p * q**2.5,) * 2),
    ("power_unbiased", {"alpha": 3}, lambda p, q: (p * q**3,) * 2),
    ("power_asym", {"alpha": 2, "delta": 0.5, "normalize": "peak"},
     lambda p, q: (27 / 16 * p * q**2, 27 / 8 * p * q**2)),
    ("f_grpo", {"gamma": 1.5, "eps": 0}, lambda p, q: (p**0.5 * q**2,) * 2),
    ("qae", {"k": 0.4}, lambda p, q: ((p / q) ** 0.5 * (p <= 0.6), (q / p) ** 0.5 * (p > 0.6))),
    ("asym_power_gu", {}, lambda p, q: (p**0.1 * q**0.9, p**0.4 * q**0.6)),
    ("pass_at_k_s", {"k": 3}, lambda p, q: (3 * p, -3 * q * (1 - q**2))),
    ("pass_at_k_loo", {"k": 3}, lambda p, q: (3 * p * q**3,) * 2),
    ("pass_at_k_loo1", {"k": 3}, lambda p, q: (3 * p * q**2, 0)),
    ("pass_at_k_coded", {"k": 3}, lambda p, q: (p * q**3,) * 2),
    ("pass_at_k_chen", {"k": 3, "std": "off"}, lambda p, q: (p * q**3,) * 2),
    ("mahdavi", {"k": 3}, lambda p, q: (3 * p * q**3,) * 2),
    ("mahdavi", {"k": 3, "base": "std"}, lambda p, q: (3 * p**0.5 * q**2.5,) * 2),
    ("mahdavi", {"k": 3, "base": "rft"}, lambda p, q: (3 * p * q**2, 0)),
    ("log_mean_exp", {"beta": 2}, lambda p, q: (KAP / 2 * p * q / (1 + KAP * p),) * 2),
    ("entropic_loo", {"beta": 2}, lambda p, q: (KAP * p * q / (1 + KAP * p),) * 2),
    ("maxrl", {}, lambda p, q: (1, 0)), ("maxrl_coded", {}, lambda p, q: (q, q)), ("linear_r", {}, lambda p, q: (q, q)),
    ("sqrt_r", {}, lambda p, q: (q**0.5,) * 2), ("tsallis", {"kappa": 0.3}, lambda p, q: (p**0.7, 0)),
    ("tsallis", {"kappa": 0.3, "centred": "on"}, lambda p, q: (p**0.7 * q,) * 2),
    # batch: mean 3/8 of 32 rollouts, variance 15/64 * 32/31
    ("lite_ppo", {"eps": 0}, lambda p, q: (p * q / math.sqrt(15 / 62),) * 2),
    ("reinforce_pp", {"eps": 0}, lambda p, q: (p * 5 / 8 / math.sqrt(15 / 62), q * 3 / 8 / math.sqrt(15 / 62))),
]


@pytest.mark.parametrize(("name", "values", "form"), POPULATION)
def test_population_formula(name, values, form):
    right = [x + 0 * INSIDE for x in form(INSIDE, 1 - INSIDE)]
    # relative 2e-10 at q = 1e-6, where 1 - p itself is known to 1e-10 only
    got = population_masses(make(name, **values), INSIDE, batch=BATCH)
    np.testing.assert_allclose(got, right, rtol=2e-10, atol=1e-15)


# qae jumps with rbar, a_grae has a pole cut off by its eps: their limits are reached more slowly.
SMOOTH = [n for n, r in RULES.items() if r.expression and r.population and n not in ("qae", "a_grae")]


@pytest.mark.parametrize("name", SMOOTH)
def test_large_groups_approach_the_population(name):
    """The error of a mass at G = 1024 is at most of order 1/G times its curvature."""
    method, p = make(name), np.array([0.2, 0.5, 0.8])
    limit = np.array(population_masses(method, p, batch=BATCH))
    near, far = (np.abs(masses(method, G, p, batch=BATCH) - limit).max() for G in (1024, 64))
    assert near < 0.02 and (near < far / 10 or far < 1e-12)  # 1/16 of it, up to higher orders


# --- figures printed in the literature and derived by hand ------------------------------------------


@pytest.mark.parametrize(("G", "alpha", "ratios"), [
    (8, 2, (0.77, 0.88, 1.75)), (8, 3, (0.68, 0.96, 4.24)), (4, 3, (0.43, 0.84, 7.6)),
])
def test_finite_groups_soften_the_focus(G, alpha, ratios):
    p = np.array([0.02, 0.5, 0.9])
    m_S, _ = masses(make("power", alpha=alpha), G, p)
    np.testing.assert_allclose(m_S / (p * (1 - p) ** alpha), ratios, atol=0.05 if G == 4 else 0.005)


def test_limits_of_the_finite_group_ratio():
    # p -> 0: m_S/p -> (1 - 1/G)^alpha; p -> 1: m_S/q -> (1 - 1/G) G^(1-alpha) although p q^alpha/q -> 0
    m_S, _ = masses(make("power", alpha=3), 8, np.array([1e-9, 1 - 1e-9]))
    np.testing.assert_allclose(m_S / 1e-9, [(7 / 8) ** 3, 7 / 8 / 64], rtol=1e-6)


@pytest.mark.parametrize(("p", "population", "bessel"), [(0.5, 0.93, 0.87), (0.02, 0.36, 0.34)])
def test_grpo_mass_at_eight(p, population, bessel):
    for ddof, right in ((0, population), (1, bessel)):
        m_S, m_F = masses(make("grpo", ddof=ddof, eps=0), 8, p)
        assert m_S / math.sqrt(p * (1 - p)) == pytest.approx(right, abs=0.005) and m_F == pytest.approx(m_S, rel=1e-13)


def test_division_by_std_and_mean_is_not_the_maxrl_estimator():
    """G = 16, p = .25: 1.88, where maxrl_coded has q - q^16 = .74."""
    assert round(masses(make("maxrl_std"), 16, 0.25)[0], 2) == 1.88
    assert round(masses(make("maxrl_coded"), 16, 0.25)[0], 2) == 0.74


def test_dapo_is_conditional_on_a_mixed_group():
    p = np.array([0.02, 0.1, 0.5])
    np.testing.assert_allclose(masses(make("dapo"), 8, p)[0], [0.316, 0.344, 0.437], atol=5e-4)
    kept = 1 - p**8 - (1 - p) ** 8
    np.testing.assert_allclose(masses(make("dapo"), 8, p), np.array(masses(make("grpo"), 8, p)) / kept, rtol=1e-12)
    # p -> 0: one success for sure, sqrt(7/1) * 1/8, with ddof 0; at 0 and 1 the limits, not 0/0
    limit = math.sqrt(7) / 8
    for m in masses(make("dapo", ddof=0, eps=0), 8, np.array([0.0, 1e-12, 1 - 1e-12, 1.0])):
        np.testing.assert_allclose(m, limit, rtol=1e-10)
    with pytest.raises(ValueError, match="both outcomes only: there are none at group size 1"):
        masses(make("dapo"), 1, 0.5)


def test_leave_one_out_std_is_not_balanced():
    ratio = sign_ratio(make("grpo_nemo"), np.array([0.05, 0.5, 0.95]), 8)
    np.testing.assert_allclose(ratio, [0.57, 1, 1.75], atol=0.005)


# --- sign ratio and scale ---------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.3, 1, 4, math.inf])
def test_sign_ratio_is_delta_at_every_solve_rate(delta):
    for name in ("asym_delta", "asym_pure", "power_asym"):
        for G in (2, 8, None):
            np.testing.assert_allclose(sign_ratio(make(name, delta=delta), INSIDE, G), delta, rtol=1e-12)


def test_sign_ratio_at_its_edges():
    assert sign_ratio(make("reinforce"), 0.5, 4) == math.inf and sign_ratio(make("nsr"), 0.5) == 0
    assert math.isnan(sign_ratio(make("dr_grpo"), 0.0, 4)) and math.isnan(sign_ratio(make("rloo"), 0.5, 1))
    # baseline(b): p (1-b)/(q b) = .2 * .7/(.8 * .3)
    assert sign_ratio(make("baseline", b=0.3), 0.2, 4) == pytest.approx(0.14 / 0.24, rel=1e-14)


def test_scale_by_hand():
    # asym_delta(.5): (1 + 2)/2; rloo: G/(G-1); half: C p q^2/(p q) = 2 q; grpo population: 1/sqrt(pq)
    assert scale(make("asym_delta", delta=0.5), 0.3, 8) == pytest.approx(1.5, rel=1e-13)
    assert scale(make("rloo"), 0.3, 8) == pytest.approx(8 / 7, rel=1e-13)
    assert scale(make("power", alpha=2, normalize="half"), 0.3) == pytest.approx(1.4, rel=1e-14)
    assert scale(make("grpo", eps=0), 0.2) == pytest.approx(2.5, rel=1e-14)
    assert math.isnan(scale(make("power"), 0.0, 8)) and math.isnan(scale(make("power"), 0.5, 1))
    np.testing.assert_array_equal(scale(make("dr_grpo"), INSIDE, 8), 1)


# --- shapes, ranges ---------------------------------------------------------------------------------


def test_scalars_arrays_and_large_grids_agree_to_the_bit():
    method = make("power", alpha=2.5)
    p = np.linspace(0, 1, 5000).reshape(100, 50)  # more than one block at G = 1024
    m_S, m_F = masses(method, 1024, p)
    assert m_S.shape == m_F.shape == p.shape
    for i, j in ((0, 0), (20, 24), (99, 49)):
        one = masses(method, 1024, p[i, j])
        assert type(one[0]) is float and one == (m_S[i, j], m_F[i, j])
    assert masses(method, 4, [])[0].shape == (0,) and type(population_masses(method, 0.5)[0]) is float


@pytest.mark.parametrize("G", [1, 2, 8, 1024])
def test_ends_are_exact(G):
    for method in static(G):
        if method.rule.mixed_only:
            continue
        table, ends = weight_table(method, G, batch=BATCH), masses(method, G, np.array([0, 1]), batch=BATCH)
        np.testing.assert_array_equal(ends[0], [0, table[G, 0]], err_msg=method.name)
        np.testing.assert_array_equal(ends[1], [-table[0, 1], 0], err_msg=method.name)
        assert not np.signbit(np.array(ends)[np.array(ends) == 0]).any()


@pytest.mark.parametrize(("p", "message"), [
    (-0.1, r"p is -0.1, expected a number in \[0, 1\]"), (1.0000001, "p is 1.0000001"), (math.nan, "p is nan"),
    ([0.5, 2.0], "p is 2.0"), (None, "p is None"), ("0.5", "p is '0.5'"), (True, "p is True"),
    ([[0.1], [0.2, 0.3]], "different lengths"),
])
def test_bad_solve_rates(p, message):
    for call in (lambda: masses(make("dr_grpo"), 4, p), lambda: closed_masses(make("dr_grpo"), 4, p),
                 lambda: sign_ratio(make("dr_grpo"), p, 4)):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("p", [0, 1, 0.0, [0.5, 1.0], math.nan])
def test_population_is_strictly_inside(p):
    with pytest.raises(ValueError, match="expected a number strictly between 0 and 1"):
        population_masses(make("dr_grpo"), p)


def test_methods_without_masses():
    table = make("table", weights=np.ones((5, 2)))
    for call, message in (
        (lambda: masses(make("fade"), 4, 0.5), "fade is adaptive"),
        (lambda: population_masses(make("fade_unit"), 0.5), "fade_unit is adaptive"),
        (lambda: population_masses(table, 0.5), "table is tied to a group size"),
        (lambda: scale(table, 0.5), "table is tied"),
        (lambda: population_masses(make("pass_at_k_tang"), 0.5), "pass_at_k_tang is tied"),
        (lambda: masses(table, 8, 0.5), "5 rows are for group size 4"),
        (lambda: masses("dr_grpo", 4, 0.5), "expected a Method"),
        (lambda: population_masses("dr_grpo", 0.5), "expected a Method"),
        (lambda: masses(make("dr_grpo"), 2.5, 0.5), "group_size is 2.5"),
        (lambda: masses(make("lite_ppo"), 4, 0.5), "lite_ppo reads the whole batch"),
        (lambda: population_masses(make("lite_ppo"), 0.5), "lite_ppo reads the whole batch"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
