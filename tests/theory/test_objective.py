"""Slope, objective and peaks: the score identity by enumeration, exact pass@k mixes, printed figures."""

import itertools
import math

import numpy as np
import pytest

from fade_sim.advantage import RULES, BatchStats, advantages, make, weight_table
from fade_sim.theory import masses, objective, peak, population_masses, slope

GRID = np.array([0.0, 1e-6, 0.02, 0.1, 0.37, 0.5, 0.8, 0.95, 1 - 1e-6, 1.0])
INSIDE = GRID[1:-1]
BATCH = BatchStats([1, 3, 0, 8], [8, 8, 8, 8])
STATIC = [n for n, r in RULES.items() if not r.adaptive and n != "table"]
UNCONDITIONAL = [n for n in STATIC if not RULES[n].mixed_only]
POPULATION = [n for n in STATIC if RULES[n].population]


def at(name, G):
    """The rule at parameters that exist at group size G."""
    at_most = RULES[name].at_most
    return make(name, **({at_most[0]: min(RULES[name].params[at_most[0]].default, G - at_most[1])} if at_most else {}))


# --- slope ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNCONDITIONAL)
def test_expected_update_is_slope_times_gradient_of_p(name):
    """All 4^4 groups of 4 rollouts of a softmax over 4 arms, 2 of them right: E[(1/G) sum A_i (e_i - pi)].

    The gradient of p = pi_0 + pi_1 in logits is pi_a (1[a right] - p).
    """
    G, method = 4, at(name, 4)
    policy = np.array([0.1, 0.23, 0.4, 0.27])
    p, right = policy[:2].sum(), np.array([1.0, 1.0, 0.0, 0.0])
    arms = np.array(list(itertools.product(range(4), repeat=G)))
    weight = advantages(right[arms], None, method, batch=BATCH)
    scores = np.eye(4)[arms] - policy
    update = np.einsum("n,ni,nia->a", policy[arms].prod(axis=1), weight, scores) / G
    gradient = policy * (right - p)
    np.testing.assert_allclose(update, slope(method, p, G, batch=BATCH) * gradient, rtol=0, atol=1e-14)
    # and before the scores' mean is used: m_S g_S - m_F g_F
    m_S, m_F = masses(method, G, p, batch=BATCH)
    g_S, g_F = right * policy / p - policy, (1 - right) * policy / (1 - p) - policy
    np.testing.assert_allclose(update, m_S * g_S - m_F * g_F, rtol=0, atol=1e-14)


@pytest.mark.parametrize("G", [1, 2, 5, 64, 1024, None])
@pytest.mark.parametrize("name", STATIC)
def test_slope_is_masses_over_p_and_q(name, G):
    if (G is None and name not in POPULATION) or (G == 1 and RULES[name].mixed_only):
        return
    k_of_one = {"k": 1} if G == 1 and RULES[name].at_most and not RULES[name].group_baseline else {}  # k <= G
    method = at(name, G) if G and G > 1 else make(name, **k_of_one)
    if G is None:
        m_S, m_F = population_masses(method, INSIDE, batch=BATCH)
        size = 1
    else:
        m_S, m_F = masses(method, G, INSIDE, batch=BATCH)
        size = np.abs(weight_table(method, G, batch=BATCH)).max()
    right = m_S / INSIDE + m_F / (1 - INSIDE)
    # m_S/p magnifies the rounding of a mass at p = 1e-6
    np.testing.assert_allclose(slope(method, INSIDE, G, batch=BATCH), right, rtol=1e-9, atol=1e-13 * size)


@pytest.mark.parametrize("G", [2, 3, 8, 64, 1024])
@pytest.mark.parametrize("delta", [0.125, 0.5, 1, 8, math.inf])
def test_asym_pure_loo_has_slope_one_at_every_group_size(G, delta):
    # delta = inf at c' = G-1: n(1) = 0 there, the rule gives 0 and the slope loses P(all others succeed) = p^(G-1)
    lost = GRID ** (G - 1) if delta == math.inf else 0
    np.testing.assert_allclose(slope(make("asym_pure_loo", delta=delta), GRID, G), 1 - lost, rtol=0, atol=2e-13)


@pytest.mark.parametrize("b", [0, 0.2, 1])
@pytest.mark.parametrize("G", [1, 2, 8, 1024])
def test_constant_baselines_have_slope_one(b, G):
    np.testing.assert_allclose(slope(make("baseline", b=b), GRID, G), 1, rtol=1e-13)


@pytest.mark.parametrize(("delta", "figures"), [(0.125, (0.306, 0.817, 0.955)), (8, (0.958, 0.817, 0.354))])
def test_asym_pure_at_four(delta, figures):
    # delta = 1/8, p = .95: x = 0, 1/4, 2/4, 3/4 give w_S + w_F = .2727, .8384, .9289, .96 (n = 1 + 7 x),
    # .000125 * .2727 + .007125 * .8384 + .135375 * .9289 + .857375 * .96 = .9548;
    # delta = 8: the same four in reverse, .000125 * .96 + .007125 * .9289 + .135375 * .8384 + .857375 * .2727 = .3541
    got = slope(make("asym_pure", delta=delta), np.array([0.02, 0.5, 0.95]), 4)
    np.testing.assert_allclose(got, figures, atol=0.0005)
    np.testing.assert_allclose(slope(make("asym_pure", delta=delta), INSIDE), 1, rtol=1e-9)  # G -> inf


def test_slope_by_hand():
    # asym_delta(.3) at p = .9: .1 + .9/.3 = 3.1, times 1 - 1/8 at G = 8
    assert slope(make("asym_delta", delta=0.3), 0.9) == pytest.approx(3.1, rel=1e-14)
    assert slope(make("asym_delta", delta=0.3), 0.9, 8) == pytest.approx(3.1 * 7 / 8, rel=1e-13)
    # easy over hard: (q + p/delta) from 1 to 1/delta = 3.3
    hard, easy = slope(make("asym_delta", delta=0.3), np.array([0.0, 1.0]), 8)
    assert easy / hard == pytest.approx(10 / 3, rel=1e-13)
    # grpo: 1/sqrt(pq) = 2.5 at .2; power(3): q^2 = .64 at .2; reinforce_pm1: 2
    assert slope(make("grpo", eps=0), 0.2) == pytest.approx(2.5, rel=1e-14)
    assert slope(make("power", alpha=3), 0.2) == pytest.approx(0.64, rel=1e-14)
    assert slope(make("reinforce_pm1"), 0.7) == 2
    # a group of one under a constant baseline: w_S(1) + w_F(0) = .7 + .3
    assert slope(make("baseline", b=0.3), 0.5, 1) == 1


def test_slope_of_resampled_groups_at_the_ends():
    # p -> 0: m_S -> A_S(1)/G > 0, so m_S/p grows without bound
    got = slope(make("dapo"), np.array([0.0, 0.5, 1.0]), 4)
    m_S, m_F = masses(make("dapo"), 4, 0.5)
    np.testing.assert_allclose(got, [math.inf, 2 * (m_S + m_F), math.inf], rtol=1e-14)


# --- objective --------------------------------------------------------------------------------------


@pytest.mark.parametrize("G", [2, 5, 8, 33])
@pytest.mark.parametrize("name", UNCONDITIONAL)
def test_objective_is_the_integral_of_the_slope(name, G):
    """Gauss-Legendre with ceil(G/2) nodes is exact: the slope is a polynomial of degree G - 1."""
    method = at(name, G)
    nodes, weights = np.polynomial.legendre.leggauss((G + 1) // 2)
    right = [p / 2 * weights @ slope(method, p / 2 * (nodes + 1), G, batch=BATCH) for p in GRID]
    size = np.abs(weight_table(method, G, batch=BATCH)).max()
    np.testing.assert_allclose(objective(method, GRID, G, batch=BATCH), right, rtol=1e-11, atol=1e-14 * size)
    assert objective(method, 0, G, batch=BATCH) == 0


def harmonic(order):
    return lambda G, q: sum((1 - q**k) / k for k in range(1, order(G) + 1))


EXACT = [  # name, parameters, J at group size G
    ("rloo", {}, lambda G, q: 1 - q), ("dr_grpo", {}, lambda G, q: (1 - 1 / G) * (1 - q)),
    ("baseline", {"b": 0.3}, lambda G, q: 1 - q), ("asym_pure_loo", {"delta": 0.3}, lambda G, q: 1 - q),
    ("power_unbiased", {"alpha": 3}, lambda G, q: (1 - q**3) / 3),
    ("pass_at_k_s", {"k": 3}, lambda G, q: 1 - q**3), ("pass_at_k_loo", {"k": 3}, lambda G, q: 1 - q**3),
    ("pass_at_k_loo1", {"k": 3}, lambda G, q: 1 - q**3), ("pass_at_k_tang", {}, lambda G, q: 1 - q**G),
    # a mix of pass@k and pass@(k-1): [(G-k) (1-q^k)/k + (1-q^(k-1))]/(G-1)
    ("pass_at_k_coded", {"k": 3}, lambda G, q: ((G - 3) * (1 - q**3) / 3 + 1 - q**2) / (G - 1)),
    ("pass_at_k_chen", {"k": 3, "std": "off"}, lambda G, q: (1 - 3 / G) * (1 - q**3) / 3),
    # log p to order G, or to order G - 1 as coded
    ("maxrl", {}, harmonic(lambda G: G)), ("maxrl_coded", {}, harmonic(lambda G: G - 1)),
    ("linear_r", {}, harmonic(lambda G: G)),
]


@pytest.mark.parametrize("G", [4, 8, 100])
@pytest.mark.parametrize(("name", "values", "form"), EXACT)
def test_objective_at_finite_groups(name, values, form, G):
    np.testing.assert_allclose(objective(make(name, **values), GRID, G), form(G, 1 - GRID), rtol=1e-10, atol=1e-14)


KAP = math.expm1(2.0)
LIMIT = [  # name, parameters, J as G -> inf
    *((name, {}, lambda p: p) for name in ("reinforce", "nsr", "baseline", "rloo", "rloo_verl", "dr_grpo", "asym_pure",
                                            "asym_pure_loo", "asym_re")),
    ("reinforce_pm1", {}, lambda p: 2 * p), ("w_reinforce", {"lam": 0.1}, lambda p: 1.1 * p),
    ("grpo", {}, lambda p: 2 * np.arcsin(np.sqrt(p))),
    ("asym_delta", {"delta": 0.3}, lambda p: p - p**2 / 2 + p**2 / 0.6),
    ("asym_delta", {"delta": math.inf}, lambda p: p - p**2 / 2), ("wapo", {}, lambda p: p - p**2 / 2),
    ("power", {"alpha": 1}, lambda p: p), ("power", {"alpha": 2.5}, lambda p: (1 - (1 - p) ** 2.5) / 2.5),
    ("power", {"alpha": 3, "normalize": "half"}, lambda p: 4 * (1 - (1 - p) ** 3) / 3),
    ("power_unbiased", {"alpha": 3}, lambda p: (1 - (1 - p) ** 3) / 3),
    ("power_asym", {"alpha": 1, "delta": 0.3}, lambda p: p - p**2 / 2 + p**2 / 0.6),
    ("power_asym", {"alpha": 2.5, "delta": 1}, lambda p: (1 - (1 - p) ** 2.5) / 2.5),
    # alpha 2, delta .5: int q (q + 2 p) = int (1 - p)(1 + p) = p - p^3/3
    ("power_asym", {"alpha": 2, "delta": 0.5}, lambda p: p - p**3 / 3),
    ("power_asym", {"alpha": 2, "delta": math.inf}, lambda p: (1 - (1 - p) ** 3) / 3),
    ("log_mean_exp", {"beta": 2}, lambda p: np.log1p(KAP * p) / 2),
    ("tsallis", {"kappa": 0.3}, lambda p: p**0.7 / 0.7),
    ("pass_at_k_loo", {"k": 4}, lambda p: 1 - (1 - p) ** 4),
    ("grpo_open_instruct", {}, lambda p: 2 * np.arcsin(np.sqrt(p))),  # eps 1e-8
    ("qae", {}, lambda p: 2 * np.arcsin(np.sqrt(p))),  # a baseline: grpo's slope
]


@pytest.mark.parametrize(("name", "values", "form"), LIMIT)
def test_objective_of_an_infinite_group(name, values, form):
    # quadrature: 1e-9; grpo_open_instruct's eps moves J by eps times log(1/eps)
    tolerance = 1e-6 if name == "grpo_open_instruct" else 1e-9
    np.testing.assert_allclose(objective(make(name, **values), GRID), form(GRID), rtol=tolerance, atol=tolerance)


INFINITE = ("maxrl", "maxrl_coded", "linear_r", "sqrt_r")  # a slope like 1/p


@pytest.mark.parametrize("name", [n for n in POPULATION if n not in (*INFINITE, "a_grae")])
def test_derivative_of_the_objective_is_the_slope(name):
    """Central difference with h = 1e-4: error h^2 J'''/6, far below 1e-5 on these rules away from the ends."""
    method, p, h = make(name), np.array([0.2, 0.5, 0.8]), 1e-4
    up, down = objective(method, p + h, batch=BATCH), objective(method, p - h, batch=BATCH)
    np.testing.assert_allclose((up - down) / (2 * h), slope(method, p, batch=BATCH), rtol=1e-5)


@pytest.mark.parametrize("name", INFINITE)
def test_infinite_objective_needs_a_start(name):
    with pytest.raises(ValueError, match=f"{name} has no finite objective between p = 0 and 0.5"):  # log p at 0
        objective(make(name), 0.5)
    assert objective(make(name), 0.5, start=0.5) == 0
    p, h = np.array([0.2, 0.5, 0.8]), 1e-4
    up, down = (objective(make(name), p + s, start=0.5) for s in (h, -h))
    np.testing.assert_allclose((up - down) / (2 * h), slope(make(name), p), rtol=1e-5)


def test_likelihood_objectives_in_closed_form():
    """maxrl: log p. sqrt_r: slope 1/(p sqrt q), J = log((1 - sqrt q)/(1 + sqrt q)). tsallis: (p^(1-k) - 1)/(1-k)."""
    p = np.array([0.01, 0.3, 0.5, 0.9])
    for name in ("maxrl", "maxrl_coded", "linear_r"):
        np.testing.assert_allclose(objective(make(name), p, start=0.5), np.log(2 * p), rtol=0, atol=1e-9)
    root, half = np.sqrt(1 - p), math.sqrt(0.5)
    log_ratio = np.log((1 - root) / (1 + root)) - math.log((1 - half) / (1 + half))
    np.testing.assert_allclose(objective(make("sqrt_r"), p, start=0.5), log_ratio, rtol=0, atol=1e-9)
    np.testing.assert_allclose(objective(make("tsallis", kappa=0.25), p), p**0.75 / 0.75, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["dr_grpo", "grpo", "power"])
def test_start_only_moves_the_zero(name):
    p = np.array([0.1, 0.7])
    for G in (None, 8):
        moved, plain = objective(make(name), p, G, start=0.3), objective(make(name), p, G)
        np.testing.assert_allclose(moved, plain - objective(make(name), 0.3, G), rtol=0, atol=1e-14)


def test_resampling_has_an_objective_from_a_start():
    with pytest.raises(ValueError, match="dapo has no finite objective"):
        objective(make("dapo"), 0.5, 8)
    p, h = np.array([0.2, 0.6]), 1e-4
    up, down = (objective(make("dapo"), p + s, 8, start=0.5) for s in (h, -h))
    np.testing.assert_allclose((up - down) / (2 * h), slope(make("dapo"), p, 8), rtol=1e-5)


# --- peaks ------------------------------------------------------------------------------------------

NAN = math.nan
PEAKS = [  # name, parameters, peak of m_S, of m_F, as G -> inf
    ("reinforce", {}, 1, NAN), ("nsr", {}, NAN, 0), ("reinforce_pm1", {}, 1, 0), ("baseline", {"b": 0.3}, 1, 0),
    ("baseline", {"b": 0}, 1, NAN), ("baseline", {"b": 1}, NAN, 0), ("dr_grpo", {}, 0.5, 0.5), ("grpo", {}, 0.5, 0.5),
    ("asym_delta", {"delta": 0.3}, 0.5, 0.5), ("asym_delta", {"delta": math.inf}, 0.5, NAN),
    ("asym_pure", {"delta": 0.25}, 1 / 3, 1 / 3),  # sqrt(.25)/(1 + sqrt(.25))
    ("asym_pure_loo", {"delta": math.inf}, 1, NAN),
    ("power", {"alpha": 1.5}, 0.4, 0.4), ("power_unbiased", {"alpha": 3}, 0.25, 0.25),
    ("power_asym", {"alpha": 3, "delta": 0.5}, 0.25, 0.25), ("power_asym", {"alpha": 3, "delta": math.inf}, 0.25, NAN),
    ("w_reinforce", {}, 1, 0), ("w_reinforce", {"lam": 0}, NAN, 0),
    ("f_grpo", {"gamma": 1.5, "eps": 0}, 0.2, 0.2),  # 1/(2 + 2 gamma)
    ("qae", {"k": 0.4}, 0.6, 0.6), ("asym_power_gu", {}, 0.1, 0.4), ("wapo", {}, 0.5, NAN),
    ("pass_at_k_loo1", {"k": 4}, 0.25, NAN), ("pass_at_k_loo", {"k": 4}, 0.2, 0.2),
    ("mahdavi", {"k": 4, "base": "std"}, 1 / 8, 1 / 8),  # 1/(2k)
    ("mahdavi", {"k": 4, "base": "rft"}, 1 / 4, NAN),
    ("log_mean_exp", {"beta": 2}, 1 / (1 + math.e), 1 / (1 + math.e)),  # 1/(1 + e^(b/2))
    ("maxrl_coded", {}, 0, 0), ("linear_r", {}, 0, 0), ("tsallis", {"kappa": 0.5}, 1, NAN),
    ("tsallis", {"kappa": 0.5, "centred": "on"}, 1 / 3, 1 / 3),  # (1 - kap)/(2 - kap)
    ("reinforce_pp", {}, 1, 0),
]


@pytest.mark.parametrize(("name", "values", "success", "failure"), PEAKS)
def test_peak_of_an_infinite_group(name, values, success, failure):
    got = peak(make(name, **values), batch=BATCH)
    np.testing.assert_allclose(got, (success, failure), rtol=0, atol=1e-6, equal_nan=True)
    assert got.success is got[0] and got.failure is got[1]


@pytest.mark.parametrize(("k", "figure"), [(1, 0.5), (2, 0.382), (4, 0.259), (8, 0.157)])
def test_peak_of_pass_at_k_training(k, figure):
    assert peak(make("pass_at_k_chen", k=k)).success == pytest.approx(figure, abs=0.0005)


def test_peak_of_grpo_lead():
    assert peak(make("grpo_lead")) == pytest.approx((0.43, 0.57), abs=0.005)


@pytest.mark.parametrize(("p_batch", "figure"), [(1, 0.80), (5, 0.78), (9, 0.40)])
def test_peak_of_a_grae_moves_to_hard_prompts(p_batch, figure):
    # batch solve rates .1, .5, .9: from easy to hard, the opposite of FADE
    assert peak(make("a_grae"), 8, batch=BatchStats([p_batch], [10])).failure == pytest.approx(figure, abs=0.01)


def test_peak_at_finite_groups():
    for G in (2, 8, 1024):
        assert peak(make("rloo"), G) == pytest.approx((0.5, 0.5), abs=1e-7)
        assert peak(make("pass_at_k_tang"), G).success == pytest.approx(1 / G, abs=1e-7)
    # power(2), G = 8: d/dp of pq [(3/4) q + 1/8] = pq (7/8 - 3/4 p): 7/8 (1 - 2p) - 3/4 (2p - 3p^2) = 0
    a, b, c = 9 / 4, -13 / 4, 7 / 8
    right = (-b - math.sqrt(b * b - 4 * a * c)) / (2 * a)
    assert peak(make("power", alpha=2), 8) == pytest.approx((right, right), abs=1e-7)
    assert right > 1 / 3  # softer than the name says
    assert peak(make("reinforce"), 8).success == 1 and peak(make("nsr"), 8).failure == 0
    assert math.isnan(peak(make("wapo"), 8).failure) and math.isnan(peak(make("dr_grpo"), 1).success)


@pytest.mark.parametrize("G", [3, 8, 64])
@pytest.mark.parametrize("name", UNCONDITIONAL)
def test_no_solve_rate_on_a_fine_grid_beats_the_peak(name, G):
    method, fine = at(name, G), np.linspace(0, 1, 20001)
    peaks, both = peak(method, G, batch=BATCH), masses(method, G, fine, batch=BATCH)
    for k, (at_peak, mass) in enumerate(zip(peaks, both, strict=True)):
        if math.isnan(at_peak):
            assert not mass.any()
            continue
        mass = mass if mass.max() > 0 else -mass  # positive nowhere: by size
        best = abs(masses(method, G, at_peak, batch=BATCH)[k])
        assert best >= mass.max() * (1 - 1e-11)


def test_refusals():
    table = make("table", weights=np.ones((5, 2)))
    for call, message in (
        (lambda: slope(make("fade"), 0.5, 8), "fade is adaptive"),
        (lambda: slope(make("fade"), 0.5), "fade is adaptive"),
        (lambda: objective(make("scale_only"), 0.5), "scale_only is adaptive"),
        (lambda: objective(make("scale_ema"), 0.5, 8), "scale_ema is adaptive"),
        (lambda: peak(make("fade_unit")), "fade_unit is adaptive"), (lambda: peak(make("fade"), 8), "fade is adaptive"),
        (lambda: peak(table), "table is tied to a group size"), (lambda: objective(table, 0.5), "table is tied"),
        (lambda: slope(table, 0.5), "table is tied"), (lambda: slope(make("grpo"), 1.0), "strictly between 0 and 1"),
        (lambda: slope(make("grpo"), math.nan, 4), "p is nan"), (lambda: objective(make("grpo"), -0.5), "p is -0.5"),
        (lambda: objective(make("grpo"), 1.5, 4), "p is 1.5"), (lambda: slope("grpo", 0.5), "expected a Method"),
        (lambda: objective("grpo", 0.5), "expected a Method"), (lambda: peak("grpo"), "expected a Method"),
        (lambda: slope(make("grpo"), 0.5, 0), "group_size is 0"),
        (lambda: peak(make("grpo"), "8"), "group_size is '8'"),
        (lambda: objective(make("gpg"), 0.5), "gpg reads the whole batch"),
        (lambda: slope(make("gpg"), 0.5, 4), "gpg reads"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_shapes():
    method, p = make("power", alpha=2), np.full((2, 3), 0.25)
    for got in (slope(method, p), slope(method, p, 8), objective(method, p), objective(method, p, 8),
                objective(make("wapo"), p)):
        assert got.shape == (2, 3) and (got == got[0, 0]).all()
    for got in (slope(method, 0.25), slope(method, 0.25, 8), objective(method, 0.25), objective(method, 0, 8),
                *peak(method, 8)):
        assert type(got) is float
