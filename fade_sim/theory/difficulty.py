"""The difficulty axis: what Power(alpha), mass p q^alpha, gains and loses by looking at hard prompts.

p is a solve rate, q = 1 - p; the focus q^(alpha-1) multiplies the gradient of a prompt and
p q^alpha = (p q) q^(alpha-1) is its mass. alpha = 1 is no focus (GRPO without std).

Nothing here fixes the ratio of signals at which alpha = 3 pays ("2.25" in arXiv 2607.01490, as
summarised): it depends on the solve rates, on what counts as hard, on how quality is defined and, in
one reading, on the scale match. `break_even` gives it as a function of all four.
"""

from typing import NamedTuple

import numpy as np

from fade_sim.advantage import make, rules
from fade_sim.errors import InputError, nearest
from fade_sim.theory.masses import expect
from fade_sim.theory.objective import peak

# --- the variance of a weighted gradient estimate ----------------------------------------------------------


class WeightedVariance(NamedTuple):
    """Parts of Var(w(phat) ghat); floats or arrays of the shape of p.

    exact = two_term + covariance + rest. Show two_term beside exact, never alone: at alpha = 3, G = 16
    it is right near p = 1/2, 40% too high at .1 and 6 times too low at .9, and larger groups do not
    repair it.
    """

    exact: np.ndarray  # trace of Var(w(phat) ghat)
    two_term: np.ndarray  # w(p)^2 v0 + s^2 Var(w(phat)), v0 = Var(ghat), s = E[ghat]
    covariance: np.ndarray  # 2 w(p) s Cov(w(phat), ghat): negative for a focus on hard prompts, p < 1/2
    rest: np.ndarray  # products of three and four deviations, and w(p) against E[w(phat)]
    signal: np.ndarray  # E[w(phat) ghat]


def weighted_variance(weight, group_size: int, p, noise: float = 1.0) -> WeightedVariance:
    """Variance of the gradient estimate of one group when it is weighted by its own solve rate phat.

    weight: function of the solve rate, vectorised on [0, 1], for example lambda x: (1 - x)**2 for
    alpha = 3. p: scalar or array. ghat = (1/G) sum_i (r_i - phat) psi_i, where the score psi of a
    rollout is r - p along the logit of p plus unit noise orthogonal to it and independent between
    rollouts; `noise` is that noise's variance. Exact sum over c ~ Bin(G, p):

        E[ghat | c] = phat (1 - phat),   Var(ghat | c) = noise phat (1 - phat) / G.
    """
    p = np.asarray(p, dtype=np.float64)
    x = np.arange(group_size + 1) / group_size
    w = np.asarray(weight(x), dtype=np.float64) + np.zeros_like(x)
    g = x * (1 - x)  # E[ghat | c]
    square = g**2 + noise * g / group_size  # E[|ghat|^2 | c]
    columns = w, w**2, g, square, w * g, w**2 * square
    mean_w, mean_ww, s, mean_gg, signal, mean_wwgg = expect(group_size, p, columns)
    exact, v0, var_w = mean_wwgg - signal**2, mean_gg - s**2, mean_ww - mean_w**2
    at_p = np.asarray(weight(p), dtype=np.float64)
    two_term = at_p**2 * v0 + s**2 * var_w
    covariance = 2.0 * at_p * s * (signal - mean_w * s)
    return WeightedVariance(exact, two_term, covariance, exact - two_term - covariance, signal)


def group_snr(alpha: float, group_size: int, p, noise: float = 1.0):
    """Signal over standard deviation of the Power(alpha) gradient of one group, model of `weighted_variance`.

    A larger alpha moves the best p down and loses the easy prompts; it gains little on hard ones.
    """
    out = weighted_variance(lambda x: (1.0 - x) ** (alpha - 1.0), group_size, p, noise)
    return out.signal / np.sqrt(out.exact)


# --- averages over solve rates -----------------------------------------------------------------------------


def average(f, solve_rates=None, low: float = 0.0, high: float = 1.0) -> float:
    """E[f(p); low <= p < high] over prompts; f vectorised, its value a float.

    solve_rates: None for uniform on [0, 1]; an array of recorded solve rates (each prompt equal);
    or a density, a function of p that need not be normalised (it is over [0, 1]; integrable
    singularities at 0 and 1 are fine). Quadrature to about 1e-12 for smooth f, to 1e-7 where the
    density grows like (1-p)^(-1/2) at 1.
    """
    if solve_rates is None:
        p, weight = _nodes(low, high)
        return float(weight @ f(p))
    if callable(solve_rates):
        p, weight = _nodes(low, high)
        everywhere, total = _nodes(0.0, 1.0)
        return float((weight * solve_rates(p)) @ f(p) / (total @ solve_rates(everywhere)))
    p = np.asarray(solve_rates, dtype=np.float64).ravel()
    if p.size == 0 or not ((p >= 0) & (p <= 1)).all():
        raise InputError("solve_rates must be numbers in [0, 1], at least one")
    inside = (p >= low) & ((p < high) | (high >= 1.0))
    return float(np.where(inside, f(p), 0.0).mean())


def _nodes(low, high):
    """Nodes and weights of tanh-sinh quadrature on [low, high]; no node at an end."""
    t = np.linspace(-5.0, 5.0, 401)
    u = np.pi / 2.0 * np.sinh(t)
    share = 1.0 / (1.0 + np.exp(-2.0 * u))
    weight = (t[1] - t[0]) * np.pi / 4.0 * np.cosh(t) / np.cosh(u) ** 2
    p = low + (high - low) * share
    inside = (p > low) & (p < high)
    return p[inside], (high - low) * weight[inside]


def kish_share(alpha: float, solve_rates=None) -> float:
    """Effective share of the prompts, N_eff/N = (E w)^2 / E w^2 with w the mass p q^alpha, in (0, 1].

    solve_rates: see `average`. Uniform: 5/6, 35/48, 63/100 for alpha = 1, 2, 3.

    >>> round(kish_share(3.0), 6)
    0.63
    """
    mass = _mass(alpha)
    return average(mass, solve_rates) ** 2 / average(lambda p: mass(p) ** 2, solve_rates)


def optimal_alpha(j):
    """Best alpha when a prompt's signal is q^j times its mass: 1 + j.

    Signal p q q^j and noise variance p q per prompt, focus w: (E[w p q q^j])^2 / E[w^2 p q] is
    largest at w proportional to q^j for any distribution of p (Cauchy-Schwarz), and w = q^(alpha-1).
    """
    return 1.0 + np.asarray(j, dtype=np.float64)[()]


# --- is the focus worth it? --------------------------------------------------------------------------------

READINGS = {
    "snr": "(E[w pq s])^2 / E[w^2 pq]: signal to noise of the summed gradient, w = q^(alpha-1)",
    "n_eff": "N_eff (E_w s)^2 = (E[w s])^2 / E[w^2], w = q^(alpha-1): every prompt equally noisy",
    "n_eff_quality": "N_eff E_w s = E[w] E[w s] / E[w^2], w = q^(alpha-1)",
    "mass_quality": "N_eff E_w s with w the mass p q^alpha",
    "signal": "C E[p q^alpha s]: expected signal alone; the only one that depends on the scale match C",
}


def quality(alpha: float, signal=None, *, reading: str = "snr", solve_rates=None, scale: str = "none",
            low: float = 0.0, high: float = 1.0) -> float:
    """Q of Power(alpha) under one reading of READINGS, for prompts of signal s(p) (a function; default 1).

    solve_rates: see `average`. scale: none, peak, mean or half, the factor C of `normalize`. With
    low and high only prompts in that range carry signal, all of them noise. Q of `snr` and `n_eff`
    is the square root of the expression, so that every reading is linear in s.
    """
    if reading not in READINGS:
        raise InputError(f"reading is {reading!r}{nearest(reading, READINGS)}")
    if scale not in rules.NORMALIZE:
        raise InputError(f"scale is {scale!r}{nearest(scale, rules.NORMALIZE)}")
    focus, mass = _focus(alpha), _mass(alpha)
    by_mass = reading in ("snr", "signal", "mass_quality")
    w = mass if by_mass else focus

    def carried(p):
        return w(p) if signal is None else w(p) * signal(p)

    top = average(carried, solve_rates, low, high)
    if reading == "signal":
        return rules.scale_constant(alpha, rules.NORMALIZE.index(scale)) * top
    if reading == "snr":
        return float(top / np.sqrt(average(lambda p: focus(p) * mass(p), solve_rates)))
    power = average(lambda p: w(p) ** 2, solve_rates)
    return float(top / np.sqrt(power)) if reading == "n_eff" else top * average(w, solve_rates) / power


def break_even(alpha: float, *, than: float = 1.0, cut: float = 0.5, reading: str = "snr", solve_rates=None,
               scale: str = "none") -> float:
    """How many times the signal hard prompts (p < cut) must carry for Power(alpha) to beat Power(than).

    Signal R for p < cut and 1 above; returns the R at which `quality` is equal, infinite where no R
    is enough, and 0 where every R is. Depends on all four settings: uniform solve rates, alpha 3
    against 1, give 2.42 (snr, cut 1/2), 2.67 (n_eff), infinity (n_eff_quality).
    """
    if alpha <= than:
        raise InputError(f"break_even compares alpha = {alpha:g} with a smaller one, not with {than:g}")
    kind = {"reading": reading, "solve_rates": solve_rates, "scale": scale}
    hard = quality(alpha, high=cut, **kind) - quality(than, high=cut, **kind)  # per unit of R
    easy = quality(than, low=cut, **kind) - quality(alpha, low=cut, **kind)
    if easy <= 0.0:
        return 0.0 if hard >= 0.0 else np.inf
    return easy / hard if hard > 0.0 else np.inf


def peak_ratio(alpha: float, *, than: float = 1.0, scale: str = "half", at: float | None = None) -> float:
    """Mass of Power(alpha) over that of Power(than) at one solve rate, by default alpha's own peak 1/(1+alpha).

    C q^(alpha - than), C from `scale` (none, peak, mean, half: which size is held fixed). One
    reading of the ratio 2.25: alpha = 3, equal at p = 1/2, at p = 1/4: ((3/4)/(1/2))^2. The other
    matches give 9/16 (none), 4/3 (peak), 15/8 (mean).
    """
    if scale not in rules.NORMALIZE:
        raise InputError(f"scale is {scale!r}{nearest(scale, rules.NORMALIZE)}")
    p = 1.0 / (1.0 + alpha) if at is None else at
    kind = rules.NORMALIZE.index(scale)
    constant = rules.scale_constant(alpha, kind) / rules.scale_constant(than, kind)
    return constant * (1.0 - p) ** (alpha - than)


def power_peak(alpha: float, group_size: int) -> float:
    """Solve rate at which the mass of Power(alpha) peaks in groups of G rollouts, to 1e-6.

    1/(1+alpha) as G grows; above it at finite G, where the plug-in rbar softens the focus on hard
    prompts (G = 8, alpha = 3: .29 in place of .25).
    """
    return peak(make("power", alpha=alpha), group_size).success


def _focus(alpha):
    return lambda p: (1.0 - p) ** (alpha - 1.0)


def _mass(alpha):
    return lambda p: p * (1.0 - p) ** alpha
