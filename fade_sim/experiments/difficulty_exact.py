"""What a focus on hard prompts does to one gradient estimate and to their sum: exact, with one check by sampling."""

import numpy as np

from fade_sim.advantage import make
from fade_sim.theory import masses
from fade_sim.theory.difficulty import (
    READINGS,
    break_even,
    group_snr,
    kish_share,
    power_peak,
    quality,
    weighted_variance,
)


def logit_normal(mean: float, sd: float):
    """Density of a solve rate whose logit is normal, as the simulated worlds draw it; not normalised."""
    def density(p):
        return np.exp(-0.5 * ((np.log(p) - np.log1p(-p) - mean) / sd) ** 2) / (p * (1 - p))
    return density


DENSITIES = {  # solve rates of the prompts; the first three have mean 1/2
    "uniform": None,
    "Beta(2, 2)": lambda p: p * (1 - p),
    "Beta(1/2, 1/2)": lambda p: (p * (1 - p)) ** -0.5,
    "default world": logit_normal(-1.2, 2.0),
    "hard world": logit_normal(-2.5, 2.0),
}
CUTS = {"1/2": 0.5, "2/5": 0.4, "1/3": 1 / 3, "1/4": 0.25}
DEFINITIONS = tuple((reading, scale) for reading in READINGS
                    for scale in (("none", "peak", "mean", "half") if reading == "signal" else ("none",)))


def snr(alphas, group_sizes, p) -> np.ndarray:
    """(G, alpha, p): signal over standard deviation of one group's weighted gradient."""
    return np.array([[group_snr(alpha, G, p) for alpha in alphas] for G in group_sizes])


def sampled_snr(alpha: float, group_size: int, p: float, groups: int, seeds: int) -> np.ndarray:
    """(seeds,): the same from drawn groups. The score of a rollout: r - p along the logit, a unit Gaussian across."""
    out = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 0x534E52])
        r = rng.random((groups, group_size)) < p
        rate = r.mean(axis=1, keepdims=True)
        advantage = (1 - rate) ** (alpha - 1) * (r - rate)
        along = (advantage * (r - p)).mean(axis=1)
        across = (advantage * rng.normal(size=r.shape)).mean(axis=1)
        out.append(along.mean() / np.sqrt(along.var(ddof=1) + across.var(ddof=1)))
    return np.array(out)


def variance_table(alphas, group_sizes, p) -> np.ndarray:
    """(G, alpha, p, 2): the two-term formula, and the same with its covariance term, each over the exact variance."""
    rows = []
    for G in group_sizes:
        parts = [weighted_variance(lambda x, a=alpha: (1 - x) ** (a - 1), G, p) for alpha in alphas]
        rows.append([np.stack([v.two_term / v.exact, (v.two_term + v.covariance) / v.exact], axis=-1) for v in parts])
    return np.array(rows)


def thresholds(densities) -> dict[tuple[str, str, str, str], float]:
    """(density, reading, scale match, cut) -> the ratio of signals at which alpha = 3 equals alpha = 1."""
    return {(density, reading, scale, cut): float(break_even(3.0, cut=at, reading=reading, scale=scale,
                                                             solve_rates=DENSITIES[density]))
            for density in densities for reading, scale in DEFINITIONS for cut, at in CUTS.items()}


def shares(alphas, densities) -> dict[str, list[float]]:
    """Effective share of the prompts, N_eff/N, per density."""
    return {density: [kish_share(alpha, DENSITIES[density]) for alpha in alphas] for density in densities}


def qualities(alphas, densities) -> dict[tuple[str, str], np.ndarray]:
    """(density, reading) -> Q of each alpha over that of the first, for prompts of equal signal."""
    found = {(density, reading): np.array([quality(alpha, reading=reading, solve_rates=DENSITIES[density])
                                           for alpha in alphas]) for density in densities for reading in READINGS}
    return {key: row / row[0] for key, row in found.items()}


def best_alpha(j: float, density: str) -> float:
    """The alpha with the largest signal to noise of the summed gradient, for prompts of signal q^j; searched."""
    from scipy.optimize import minimize_scalar

    def loss(alpha):
        return -quality(alpha, lambda p: (1 - p) ** j, reading="snr", solve_rates=DENSITIES[density])

    return float(minimize_scalar(loss, bounds=(1.0, 8.0), method="bounded", options={"xatol": 1e-6}).x)


def softening(alpha: float, group_sizes, p) -> np.ndarray:
    """(G, p): mass of Power(alpha) at the group size over p q^alpha."""
    return np.array([masses(make("power", alpha=alpha), G, p)[0] / (p * (1 - p) ** alpha) for G in group_sizes])


def peaks(alpha: float, group_sizes) -> list[float]:
    return [power_peak(alpha, G) for G in group_sizes]
