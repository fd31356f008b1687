"""Growth of a small perturbation of the head under stale rollouts, in exact expectation, against its closed form.

No reward signal: each arm of prompt x gets the weight -(m_F - m_S)(x), so the on-policy update is zero and what is
left is the stale term, D_t = eta A (D_{t-1} + ... + D_{t-L}) to first order (`theory.stability`). The policy
used here is the full softmax, so agreement is a test of the first order, not an identity.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fade_sim.advantage import make
from fade_sim.config import resolve
from fade_sim.sim.expected import initial_policy
from fade_sim.sim.reference import head_gradient, policy
from fade_sim.sim.run import _Replica
from fade_sim.sim.world import make_world
from fade_sim.spectral import ResidualCorrelation, residual_correlation, stability
from fade_sim.theory import masses
from fade_sim.theory.stability import growth_factor, safe_delta

KICK = 1e-6  # size of the perturbation: small enough for first order, far above rounding


class Start(NamedTuple):
    """A world before training: arrays, policy (N, K), solve rates (N,), gradients of the logits (N, K, V d)."""

    world: object
    policy: np.ndarray
    p: np.ndarray
    jacobian: np.ndarray


def start(world: dict, seed: int) -> Start:
    """The initial policy of a seed's world; `world` is a [world] section."""
    arrays = make_world(resolve({"world": world}, {}).regimes[0].world, seed)
    prompts, mu, p = initial_policy(arrays)
    jacobian = np.einsum("nkv,nkd->nkvd", arrays.token[prompts], arrays.hidden[prompts])
    return Start(arrays, mu, p, jacobian.reshape(*mu.shape, -1))


def top_eigen(at: Start, weight) -> tuple[float, np.ndarray]:
    """Largest eigenvalue and its eigenvector (V d,) of E_x[weight(x) F_x]; weight (N,)."""
    mean = np.einsum("nk,nkD->nD", at.policy, at.jacobian)
    scaled = np.sqrt(np.maximum(weight, 0)[:, None] * at.policy)[..., None] * (at.jacobian - mean[:, None])
    rows = scaled.reshape(-1, scaled.shape[-1])
    value, vector = np.linalg.eigh(rows.T @ rows / len(weight))
    return float(value[-1]), vector[:, -1]


def excess_mass(p, delta: float, group_size: int):
    """m_F - m_S of asym_delta at each solve rate, exact at the group size."""
    m_S, m_F = masses(make("asym_delta", delta=delta), group_size, p)
    return m_F - m_S


def growth(at: Start, excess, eigen: tuple[float, np.ndarray], lag: int, Lambda: float) -> float:
    """Measured ln z per step of a perturbation along the top eigenvector, eta set so that eta L lambda = Lambda.

    The first L increments follow the predicted mode, so that only the dominant root is excited; the rate is
    read over the last of three lags.
    """
    value, vector = eigen
    eta = Lambda / (lag * value)
    z = float(growth_factor(eta * value, lag))
    shape = at.world.token.shape[2], at.world.hidden.shape[2]
    prompts = np.arange(at.world.n_train)
    own = at.world.bias[prompts]
    increments = [KICK * z**j * vector.reshape(shape) for j in range(-lag, 0)]
    heads = [np.zeros(shape)]
    for step in increments:
        heads.append(heads[-1] + step)
    for _ in range(3 * lag):
        mu = policy(at.world, prompts, heads[-1 - lag], own)
        pi = policy(at.world, prompts, heads[-1], own)
        heads.append(heads[-1] + eta * head_gradient(at.world, prompts, -excess[:, None] * (mu - pi)))
    size = [abs(np.vdot(vector.reshape(shape), b - a)) for a, b in pairwise(heads)]
    return float(np.log(size[-1] / size[-1 - lag]) / lag)


def growth_table(settings: dict) -> dict:
    """Predicted and measured ln z by lag, Lambda and world, and the Lambda at which the measured rate is 0."""
    group_size, delta = settings["group_size"], settings["delta"]
    starts = [start(settings["world"], seed) for seed in range(settings["seeds"])]
    parts = [(at, excess_mass(at.p, delta, group_size)) for at in starts]
    parts = [(at, excess, top_eigen(at, excess)) for at, excess in parts]
    measured = np.array([[[growth(*part, lag, x) for part in parts] for x in settings["Lambda"]]
                         for lag in settings["lags"]])
    predicted = np.log([[growth_factor(x / lag, lag) for x in settings["Lambda"]] for lag in settings["lags"]])
    around = np.array([[[growth(*part, lag, x) for part in parts] for x in settings["around"]]
                       for lag in settings["lags"]])
    low, high = settings["around"]
    critical = low + (high - low) * -around[:, 0] / (around[:, 1] - around[:, 0])
    return {"Lambda": list(settings["Lambda"]), "lags": list(settings["lags"]), "measured": measured,
            "predicted": predicted, "critical": critical, "safe": _at_safe_delta(starts, settings)}


def _at_safe_delta(starts, settings: dict) -> dict:
    """Measured Lambda of asym_delta at the safe delta and 20% below and above: below 1 means stable.

    eta is set so that the safe delta is the `delta` of the settings, on the average world.
    """
    lag, G = settings["lags"][-1], settings["group_size"]
    out = {"delta": [], "growth": []}
    eta = None
    for at in starts:
        m_S, _ = masses(make("dr_grpo"), G, at.p)
        lambda_S = top_eigen(at, m_S)[0]
        eta = eta or settings["delta"] / (1 - settings["delta"]) / (lag * lambda_S)  # solves safe_delta = delta
        safe = float(safe_delta(eta, lag, lambda_S))
        rates = []
        for share in (0.8, 1.0, 1.2):
            delta = min(share * safe, 0.99)
            excess = excess_mass(at.p, delta, G)
            eigen = top_eigen(at, excess)
            rates.append(growth(at, excess, eigen, lag, eta * lag * eigen[0]))
        out["delta"].append(safe)
        out["growth"].append(rates)
    return {name: np.array(values) for name, values in out.items()}


def lambda_top(world: dict, delta: float, group_size: int, seeds: int) -> np.ndarray:
    """lambda_max(E_x[(m_F - m_S) F_x]) of asym_delta at the start, (seeds,)."""
    starts = (start(world, seed) for seed in range(seeds))
    return np.array([top_eigen(at, excess_mass(at.p, delta, group_size))[0] for at in starts])


# --- what a person without the exact policy would measure --------------------------------------------------


class Sampled(NamedTuple):
    """From rollouts drawn from the initial policy of each world, each (seeds,) or (seeds, 4)."""

    correlation: np.ndarray  # all_success, all_failure, distinct_success, distinct_failure
    in_sample: np.ndarray  # Lambda from the same rollouts
    cross_validated: np.ndarray
    exact: np.ndarray


def sampled_meters(world: dict, delta: float, group_size: int, rollouts: int, eta: float, lag: int,
                   seeds: int) -> Sampled:
    """Residual correlations and Lambda from `rollouts` sampled scores per prompt, beside the exact Lambda."""
    rows = []
    for seed in range(seeds):
        at = start(world, seed)
        rng = np.random.default_rng([seed, 0x726B])
        counts = rng.multinomial(rollouts, at.policy)
        n = np.arange(len(at.p))
        rho: ResidualCorrelation = residual_correlation(at.world.hidden[n], counts, at.world.success[n])
        mean = np.einsum("nk,nkD->nD", at.policy, at.jacobian)
        scores = []
        for x in n:
            arms = np.repeat(np.arange(counts.shape[1]), counts[x])
            rng.shuffle(arms)  # the halves of the cross-validation are the odd and the even rollouts
            scores.append(at.jacobian[x, arms] - mean[x])
        m_S, m_F = masses(make("asym_delta", delta=delta), group_size, at.p)
        inside, across = (stability(scores, at.p, m_S, m_F, eta, lag, cross_validate=split).Lambda
                          for split in (False, True))
        rows.append((tuple(rho), inside, across, eta * lag * top_eigen(at, m_F - m_S)[0]))
    return Sampled(*(np.array(column) for column in zip(*rows, strict=True)))


def trained_correlation(world: dict, steps: int, rollouts: int, seeds: int) -> np.ndarray:
    """(seeds, 4) residual correlations, in the order of `Sampled`, after so many on-policy steps of dr_grpo."""
    cfg = resolve({"world": world, "method": {"name": "dr_grpo"}}, {})
    rows = []
    for seed in range(seeds):
        arrays = make_world(cfg.regimes[0].world, seed)
        run = _Replica(cfg.regimes[0].train, cfg.contenders[0], arrays, seed)
        run.advance(steps, lambda done: None)
        n = np.arange(arrays.n_train)
        pi = policy(arrays, n, run.state.head, run.state.theta)
        counts = np.random.default_rng([seed, 0x726B]).multinomial(rollouts, pi)
        rows.append(tuple(residual_correlation(arrays.hidden[n], counts, arrays.success[n])))
    return np.array(rows)
