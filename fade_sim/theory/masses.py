"""Gradient masses of a rule: how much weight successes and failures get, on average over groups.

A group is G rollouts of one prompt with solve rate p; c of them succeed, c ~ Binomial(G, p). A rule
gives each success the signed weight A_S(c), each failure A_F(c), and the update is
(1/G) sum_i A_i grad log pi(tau_i). With g_S, g_F the mean scores over successes and failures,

    E[update] = m_S g_S - m_F g_F,    m_S = E[(c/G) A_S(c)],    m_F = -E[(1 - c/G) A_F(c)],    (1)

true at every G although A_i depends on the whole group. As G -> inf, with q = 1 - p,

    m_S = p A_S(p),    m_F = -q A_F(p).                                                        (2)

Masses have the unit of a weight and no sign convention of their own: both are positive for a rule
that reinforces successes and discourages failures. Source: arXiv 2607.01490 (the two axes m_S/m_F and
p -> m(p)). `batch` is needed by, and only read by, rules that depend on the whole batch; their masses
hold its statistics fixed.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from fade_sim.advantage import BatchStats, Method, make, weight_table
from fade_sim.advantage.rules import NORMALIZE, Group, scale_constant
from fade_sim.advantage.table import batch_moments, check_method
from fade_sim.errors import InputError

_CELLS = 1 << 20  # binomial probabilities held at a time: 8 MiB


# --- masses -----------------------------------------------------------------------------------------


def masses(method: Method, group_size: int, p, *, batch: BatchStats | None = None):
    """(m_S, m_F) at group size G: the exact sums (1), to about 1e-13 of the largest weight.

    p: solve rate in [0, 1], a number or an array of any shape; two floats for a number, else two
    float64 arrays of p's shape. Rules that resample until 0 < c < G (dapo) are per kept prompt:
    conditional on that, with the limits of it at p = 0 and 1. Raises InputError on a p outside [0, 1]
    or NaN, on an adaptive method (resolve it first) and where weight_table does.
    """
    check_method(method)
    table = weight_table(method, group_size, batch=batch)
    share = np.arange(group_size + 1) / group_size
    columns = share * table[:, 0], -(1 - share) * table[:, 1]
    m_S, m_F = expect(group_size, rates(p), columns, mixed=_mixed(method, group_size))  # eq. (1)
    return like(p, m_S), like(p, m_F)


def population_masses(method: Method, p, *, batch: BatchStats | None = None):
    """(m_S, m_F) in the limit of an infinite group: the rule itself at rbar = p, eq. (2).

    p: solve rate strictly inside (0, 1), a number or an array; shapes as in `masses`. Raises InputError
    on any other p, on an adaptive method, and on a rule without such a limit (a table of your own).
    """
    x = rates(p, inside=True)
    success, failure = population_weights(method, x, batch)
    return like(p, x * success + 0.0), like(p, (1 - x) * -failure + 0.0)  # eq. (2)


def sign_ratio(method: Method, p, group_size: int | None = None, *, batch: BatchStats | None = None):
    """m_S / m_F, above 1 where successes weigh more: inf where only m_F is 0, NaN where both are.

    group_size None: the limit of an infinite group. Shapes, ranges, errors: `masses`, `population_masses`.
    """
    m_S, m_F = _either(method, p, group_size, batch)
    with np.errstate(divide="ignore", invalid="ignore"):
        return like(p, np.divide(m_S, m_F))


def scale(method: Method, p, group_size: int | None = None, *, batch: BatchStats | None = None):
    """(m_S + m_F) / (that of dr_grpo at the same p and G). NaN or inf where dr_grpo has no mass: p = 0, 1; G = 1.

    group_size None: the limit of an infinite group. Shapes, ranges, errors: `masses`, `population_masses`.
    """
    m_S, m_F = _either(method, p, group_size, batch)
    base_S, base_F = _either(make("dr_grpo"), p, group_size, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        return like(p, np.divide(np.add(m_S, m_F), np.add(base_S, base_F)))


def _either(method: Method, p, group_size: int | None, batch: BatchStats | None):
    if group_size is None:
        return population_masses(method, p, batch=batch)
    return masses(method, group_size, p, batch=batch)


# --- closed forms at finite G -----------------------------------------------------------------------


def closed_masses(method: Method, group_size: int, p):
    """(m_S, m_F) at group size G from the closed form of the rule, or None for a rule without one here.

    An independent check of `masses`. Shapes, ranges and errors as there; power and power_asym have a
    closed form for integer alpha only.
    """
    check_method(method)
    form, params, x = _CLOSED.get(method.name), method.params, rates(p)
    if form or method.rule.adaptive:
        weight_table(method, group_size)  # for its refusals
    if form is None or params.get("alpha", 1) != math.floor(params.get("alpha", 1)):
        return None
    if group_size == 1 and method.rule.group_baseline:
        return like(p, 0.0 * x), like(p, 0.0 * x)  # no other rollout, no baseline: weight 0
    m_S, m_F = form(group_size, x, 1 - x, **params)
    return like(p, m_S + 0.0 * x), like(p, m_F + 0.0 * x)


def _power_asym(G, p, q, alpha, delta=1.0, normalize="none"):
    """m_S = C E[(c/G) f^alpha], f = (G-c)/G: powers of G-c in falling factorials, each of which is exact.

    x^alpha = sum_j S2(alpha, j) x_(j) and E[c (G-c)_(j)] = G_(j+1) p q^j.
    """
    alpha, m_S = int(alpha), 0.0
    for j, s2 in enumerate(_stirling2(alpha, min(alpha, G - 1))):
        m_S = m_S + s2 * math.perm(G, j + 1) / G ** (alpha + 1) * p * q**j  # S2(alpha,j) G_(j+1) p q^j / G^(alpha+1)
    m_S = scale_constant(float(alpha), NORMALIZE.index(normalize)) * m_S
    return m_S, m_S / delta  # m_F = m_S/delta in every group


def _stirling2(n: int, most: int) -> list[int]:
    """S2(n, j), j = 0..most: ways to split n things into j non-empty sets; S2(n,j) = j S2(n-1,j) + S2(n-1,j-1)."""
    row = [1] + [0] * most
    for _ in range(n):
        row = [0] + [j * row[j] + row[j - 1] for j in range(1, most + 1)]
    return row


_CLOSED: dict[str, Callable] = {
    "reinforce": lambda G, p, q: (p, 0.0),
    "reinforce_pm1": lambda G, p, q: (p, q),
    "nsr": lambda G, p, q: (0.0, q),
    "baseline": lambda G, p, q, b: (p * (1 - b), q * b),
    "rloo": lambda G, p, q: (p * q, p * q),
    "dr_grpo": lambda G, p, q: ((1 - 1 / G) * p * q, (1 - 1 / G) * p * q),
    "asym_delta": lambda G, p, q, delta: ((1 - 1 / G) * p * q, (1 - 1 / G) * p * q / delta),
    "power": _power_asym,
    "power_asym": _power_asym,
    "power_unbiased": lambda G, p, q, alpha: (p * q**alpha, p * q**alpha),
}


# --- shared with objective.py -----------------------------------------------------------------------


def rates(p, inside: bool = False) -> np.ndarray:
    """p as float64, every entry in [0, 1], or strictly inside (0, 1); InputError otherwise."""
    where = "strictly between 0 and 1" if inside else "in [0, 1]"
    try:
        x = np.asarray(p)
    except ValueError:
        raise InputError("p has rows of different lengths") from None
    if x.dtype.kind not in "fiu":
        raise InputError(f"p is {p!r}, expected a number or numbers {where}")
    x = x.astype(np.float64)
    good = (x > 0) & (x < 1) if inside else (x >= 0) & (x <= 1)
    if not good.all():
        raise InputError(f"p is {float(x[~good].flat[0])}, expected a number {where}")
    return x


def like(p, values):
    """A float where p is a single number, else the array."""
    return float(values) if np.ndim(p) == 0 else np.asarray(values, dtype=np.float64)


def expect(n: int, p: np.ndarray, columns, mixed: bool = False) -> list[np.ndarray]:
    """E[column[c]], c ~ Binomial(n, p), for each column of shape (n+1,); arrays of p's shape.

    mixed: conditional on 0 < c < n.
    """
    flat = p.reshape(-1)
    low, high = (1, n) if mixed else (0, n + 1)
    out = [np.empty_like(flat) for _ in columns]
    step = max(1, _CELLS // (n + 1))
    for i in range(0, len(flat), step):
        pmf = _binomial(n, flat[i : i + step], low, high)
        for total, column in zip(out, columns, strict=True):
            total[i : i + step] = (pmf * column[low:high]).sum(axis=1)
    return [total.reshape(p.shape) + 0.0 for total in out]


def _binomial(n: int, p: np.ndarray, low: int, high: int) -> np.ndarray:
    """P(c | low <= c < high) for c ~ Binomial(n, p), shape (P, high - low); exact at p = 0 and 1.

    In logarithms, so that n = 1024 neither under- nor overflows; the common factor p^low q^(n-high+1)
    is left out and what remains is normalised, which also removes the common part of the rounding.
    """
    c = np.arange(low, high)
    successes, failures = c - low, high - 1 - c
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p, log_q = np.log(p)[:, None], np.log1p(-p)[:, None]
        # 0 log 0 = 0: a factor that is not there
        log = np.where(successes > 0, successes * log_p, 0.0) + np.where(failures > 0, failures * log_q, 0.0)
    pmf = np.exp(_log_choose(n)[low:high] + log)
    return pmf / pmf.sum(axis=1, keepdims=True)


@lru_cache(maxsize=64)
def _log_choose(n: int) -> np.ndarray:
    """log C(n, c), c = 0..n, from exact integers."""
    ways, logs = 1, []
    for c in range(n + 1):
        logs.append(math.log(ways))
        ways = ways * (n - c) // (c + 1)
    return np.array(logs)


def population_weights(method: Method, p: np.ndarray, batch: BatchStats | None):
    """(A_S, A_F) of an infinite group of solve rate p, each of p's shape."""
    check_method(method)
    rule = method.rule
    if rule.adaptive:
        weight_table(method, 2)  # raises, and says what to pass instead
    if rule.expression is None or not rule.population:
        raise InputError(f"{method.name} is tied to a group size: it has no limit of an infinite group")
    if rule.reads_batch and batch is None:
        raise InputError(f"{method.name} reads the whole batch: pass batch=BatchStats(successes, sizes)")
    moments = batch_moments(batch) if rule.reads_batch else None
    group = Group(mean=p, variance=p * (1 - p), inv_size=0.0)
    return tuple(np.asarray(method.expression(r, group, moments)) + 0.0 * p for r in (1.0, 0.0))


def _mixed(method: Method, group_size: int) -> bool:
    """Are the masses conditional on 0 < c < G?"""
    if method.rule.mixed_only and group_size == 1:
        raise InputError(f"{method.name} keeps groups with both outcomes only: there are none at group size 1")
    return method.rule.mixed_only
