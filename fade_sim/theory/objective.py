"""The objective that a rule climbs: its slope, its value, and where its masses peak.

Scores have mean zero, p g_S + q g_F = 0, so for every on-policy update in exact expectation

    E[update] = m_S g_S - m_F g_F = (m_S/p + m_F/q) grad p = J'(p) grad p :                     (3)

a rule ascends J, and how its mass is split between successes and failures drops out of J. At finite G
a success sees c' + 1 successes and a failure c', c' ~ Binomial(G-1, p), hence

    J'(p) = E[A_S(c'+1) - A_F(c')],                                                             (4)

a polynomial without the division by p and q. Its integral is exact too: with s_j = A_S(j+1) - A_F(j),
int_0^p of the j-th binomial probability of G-1 is P(Binomial(G, p) > j)/G, so

    J(p) = (1/G) E[ s_0 + ... + s_(c-1) ],  c ~ Binomial(G, p).                                 (5)

J is in units of a weight; J(0) = 0 unless another start is given. Source: arXiv 2607.01490; (4) and (5) are elementary.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fade_sim.advantage import BatchStats, Method, weight_table
from fade_sim.advantage.rules import NORMALIZE, scale_constant
from fade_sim.advantage.table import check_method
from fade_sim.errors import InputError
from fade_sim.theory.masses import expect, like, masses, population_masses, population_weights, rates


def slope(method: Method, p, group_size: int | None = None, *, batch: BatchStats | None = None):
    """J'(p) = m_S/p + m_F/q, the factor of grad p in the expected update.

    p: a number or an array, in [0, 1] at a finite group size (the limits at 0 and 1 are exact), strictly
    inside for group_size None, the limit of an infinite group. A float for a number, else float64 of
    p's shape. For rules that resample until 0 < c < G (dapo) it is inf at p = 0 and 1. Raises InputError
    as `masses` and `population_masses` do.
    """
    check_method(method)
    if group_size is None:
        success, failure = population_weights(method, rates(p, inside=True), batch)
        return like(p, success - failure)  # eq. (3)
    if method.rule.mixed_only:
        m_S, m_F = masses(method, group_size, p, batch=batch)
        with np.errstate(divide="ignore"):
            return like(p, np.divide(m_S, p) + np.divide(m_F, np.subtract(1, p)))  # eq. (3)
    (value,) = expect(group_size - 1, rates(p), [_steps(method, group_size, batch)])  # eq. (4)
    return like(p, value)


def objective(method: Method, p, group_size: int | None = None, *, start: float = 0.0,
              batch: BatchStats | None = None):
    """J(p) with J' = slope and J(start) = 0.

    p in [0, 1], a number or an array; a float for a number, else float64 of p's shape. Exact at a finite
    group size, eq. (5). group_size None: the limit of an infinite group, in closed form where there is
    one (grpo's leaves out its eps, an error of order eps), else by adaptive quadrature to about 1e-10,
    which needs SciPy. Where the slope is like 1/p (maxrl's objective is log p, and dapo's at a finite G is
    like it) J from 0 is infinite: InputError, and a `start` inside (0, 1), say .5, is what to give. Raises
    InputError as `slope` does too.
    """
    check_method(method)
    x, origin = rates(p), rates(start)
    if origin.ndim:
        raise InputError(f"start is {start!r}, expected a number in [0, 1]")
    if group_size is None:
        form = _OBJECTIVES.get(method.name)
        if form is None:
            return like(p, _quadrature(method, x, float(origin), lambda at: slope(method, at, batch=batch)))
        value, zero = (form(at, 1 - at, **method.params) + 0.0 * at for at in (x, origin))
        return like(p, value - zero)
    if method.rule.mixed_only:
        weight_table(method, group_size)  # for its refusals
        return like(p, _quadrature(method, x, float(origin), lambda at: slope(method, at, group_size)))
    steps = np.concatenate([[0.0], np.cumsum(_steps(method, group_size, batch))]) / group_size
    (value,), (zero,) = (expect(group_size, at, [steps]) for at in (x, origin))  # eq. (5)
    return like(p, value - zero)


def _steps(method: Method, group_size: int, batch: BatchStats | None) -> np.ndarray:
    """s_j = A_S(j+1) - A_F(j), j = 0..G-1: the slope given j successes among the other rollouts."""
    table = weight_table(method, group_size, batch=batch)
    return table[1:, 0] - table[:-1, 1]


# --- objectives of an infinite group ----------------------------------------------------------------


def _power(p, q, alpha, delta=1.0, normalize="none"):
    """int q^(a-1) (q + p/delta) = I_(a+1) + (I_a - I_(a+1))/delta, I_a = int q^(a-1) = (1 - q^a)/a."""
    with np.errstate(divide="ignore"):
        log_q = np.log1p(-p)
    low, high = (-np.expm1(a * log_q) / a for a in (alpha, alpha + 1))  # (1 - q^a)/a
    return scale_constant(alpha, NORMALIZE.index(normalize)) * (high + (low - high) / delta)


_OBJECTIVES: dict[str, Callable] = {
    **dict.fromkeys(("reinforce", "nsr", "rloo", "rloo_verl", "dr_grpo"), lambda p, q: p),
    "baseline": lambda p, q, b: p,
    "asym_pure": lambda p, q, delta: p,
    "asym_pure_loo": lambda p, q, delta: p,
    "reinforce_pm1": lambda p, q: 2 * p,
    "grpo": lambda p, q, ddof, eps: 2 * np.arcsin(np.sqrt(p)),  # eps -> 0
    "asym_delta": lambda p, q, delta: p - p**2 / 2 + p**2 / (2 * delta),  # int q + p/delta
    "power": _power,  # C (1 - q^a)/a
    "power_unbiased": _power,
    "power_asym": _power,
}


def _quadrature(method: Method, x: np.ndarray, start: float, derivative: Callable) -> np.ndarray:
    """int_start^p of the slope; p = sin^2 t takes slopes like 1/sqrt(pq) to smooth ones."""
    from scipy.integrate import quad

    def integrand(t):
        p = min(max(math.sin(t) ** 2, 1e-300), 1 - 1e-16)
        return derivative(p) * math.sin(2 * t)

    def angle(p):
        return math.asin(math.sqrt(p))

    out = np.zeros_like(x)
    for at, p in np.ndenumerate(x):
        if p != start:
            value, error, *_ = quad(integrand, angle(start), angle(p), epsabs=1e-12, epsrel=1e-12, limit=400,
                                    full_output=1)
            if not error < 1e-8 * max(1.0, abs(value)):
                raise InputError(f"{method.label} has no finite objective between p = {start:g} and {p:g}: "
                                 "its slope cannot be integrated there; give a start and p inside (0, 1)")
            out[at] = value
    return out


# --- peaks ------------------------------------------------------------------------------------------


class Peak(NamedTuple):
    """Solve rates in [0, 1] at which m_S and m_F are largest; NaN for a mass that is 0 everywhere.

    A mass that is positive nowhere (failures that are reinforced) counts by its size.
    """

    success: float
    failure: float


def peak(method: Method, group_size: int | None = None, *, batch: BatchStats | None = None) -> Peak:
    """Where the masses of successes and of failures peak; 0 and 1 stand for the limits there.

    group_size None: an infinite group, in closed form where there is one. Otherwise by search, to 1e-6
    or better; of several equal maxima an end of [0, 1], else the smallest. Raises InputError as
    `masses` and `population_masses` do.
    """
    check_method(method)
    if group_size is None:
        form = _PEAKS.get(method.name)
        if form:
            return Peak(*form(**method.params))
        edge = _logistic(np.array([-_EDGE, _EDGE]))

        def both(p):
            return population_masses(method, p, batch=batch)
    else:
        edge = np.array([0.0, 1.0])

        def both(p):
            return masses(method, group_size, p, batch=batch)

    return Peak(*(_largest(lambda p, k=k: both(p)[k], edge) for k in (0, 1)))


_EDGE = 25.0  # logit at which the search of an open interval ends: p = 1.4e-11


def _logistic(x):
    return 1 / (1 + np.exp(-x))


def _largest(mass: Callable, edge: np.ndarray) -> float:
    """argmax of a mass over [0, 1] by zooming in on a grid of logits; `edge`: where its ends are evaluated."""
    x = np.linspace(-_EDGE, _EDGE, 2001)
    values, ends = mass(_logistic(x)), mass(edge)
    highest = max(values.max(), ends.max())
    if highest <= 0:
        if not values.any() and not ends.any():
            return math.nan
        return _largest(lambda p: -mass(p), edge)
    for end in (0, 1):
        if ends[end] >= highest * (1 - 1e-12):  # nothing inside is higher by more than rounding
            return float(end)
    for _ in range(7):  # each round narrows the bracket 32 times
        i = min(max(int(values.argmax()), 1), len(x) - 2)
        x = np.linspace(x[i - 1], x[i + 1], 65)
        values = mass(_logistic(x))
    return float(_logistic(x[values.argmax()]))


def _asymmetric(p_success: float, p_failure: float, delta: float) -> tuple[float, float]:
    return p_success, math.nan if delta == math.inf else p_failure  # delta = inf: failures weigh nothing


def _pure(delta):
    """1/m_S = 1/p + 1/(delta q) is least where q/p = delta^(-1/2): p* = sqrt(delta)/(1 + sqrt(delta))."""
    at = 1 / (1 + delta**-0.5)
    return _asymmetric(at, at, delta)


_PEAKS: dict[str, Callable] = {
    "reinforce": lambda: (1.0, math.nan),  # m_S = p
    "nsr": lambda: (math.nan, 0.0),  # m_F = q
    "reinforce_pm1": lambda: (1.0, 0.0),
    "baseline": lambda b: (1.0 if b < 1 else math.nan, 0.0 if b > 0 else math.nan),  # p (1-b), q b
    "rloo": lambda: (0.5, 0.5),  # p q
    "rloo_verl": lambda: (0.5, 0.5),
    "dr_grpo": lambda: (0.5, 0.5),
    "grpo": lambda ddof, eps: (0.5, 0.5),  # p q/(sqrt(p q) + eps)
    "asym_delta": lambda delta: _asymmetric(0.5, 0.5, delta),  # p q, p q/delta
    "asym_pure": _pure,
    "asym_pure_loo": _pure,
    "power": lambda alpha, normalize: (1 / (1 + alpha),) * 2,  # p q^alpha
    "power_unbiased": lambda alpha: (1 / (1 + alpha),) * 2,
    "power_asym": lambda alpha, delta, normalize: _asymmetric(1 / (1 + alpha), 1 / (1 + alpha), delta),
}
