"""The synthetic world: prompts whose successes cluster on shared skills and whose failures do not.

A rollout is one of K arms. Arm a of a prompt has a hidden state h_a in R^d and a token vector v_a in
R^V; the policy is softmax of z_a = b_a + v_a^T W h_a + theta_a, with one head W (V x d) for all
prompts and a table theta of each training prompt's own. All hidden states share the direction
u1 = e_0; skills are shared by prompts, and by training and held-out prompts alike:

    success of skill m: h = sqrt(c) u1 + sqrt(1-c) (sqrt(rho_S) C_m + sqrt(1-rho_S) xi)
                        v = sqrt(kappa) T_m + sqrt(1-kappa) nu,  T_m = sqrt(tau) t0 + sqrt(1-tau) T_m'
    failure:            h = sqrt(c) u1 + sqrt(1-c) xi,   v = nu (a decoy: v as a success of some skill)

xi, nu and every T_m', C_m are independent random directions; C_m and xi have no u1 component.
"""

from typing import NamedTuple

import numpy as np


class WorldArrays(NamedTuple):
    """P prompts (training first), K arms. Plain arrays: the kernels take this as it is."""

    hidden: np.ndarray  # (P, K, d), norm about 1; linear: (P, 1, d), one for all arms
    token: np.ndarray  # (P, K, V), norm about 1; linear: (P, 0, 0)
    bias: np.ndarray  # (P, K) logits at W = 0
    success: np.ndarray  # (P, K) bool
    mode: np.ndarray  # (P, K) int64: which of the prompt's skills a success shows; -1 for a failure
    n_train: int  # prompts 0 .. n_train-1 are trained, the others are held out
    n_modes: int  # skills per prompt at most
    linear: bool  # z = h W with W (d, K), in place of v^T W h with W (V, d)
    noise: tuple[float, float]  # chances that the verifier gives a success 0, a failure 1
    hidden_t: np.ndarray  # (P, d, K): the same, arms last, for loops over arms
    token_t: np.ndarray  # (P, V, K)


def make_world(spec, seed: int, solve_rates: np.ndarray | None = None) -> WorldArrays:
    """Draw a world. spec: a `config.World`; seed >= 0 fixes everything.

    solve_rates: (n,) initial solve rates in (0, 1) of real prompts; a third of them, chosen by the
    seed, is held out. Without it they are drawn: logit p0 ~ N(solve_mean, solve_sd^2).
    """
    rng = np.random.default_rng([seed, 0x57304C44])
    if solve_rates is None:
        p0 = _draw_solve_rates(spec, rng)
        n_train = spec.train_prompts
    else:
        p0 = np.asarray(solve_rates, dtype=np.float64)[rng.permutation(len(solve_rates))]
        n_train = len(p0) - len(p0) // 3
    P, K, M = len(p0), spec.arms, spec.skills
    skill_hidden = _directions(rng, (M,), spec.hidden, first_zero=True)
    if spec.policy == "linear":
        return _linear_world(spec, rng, p0, n_train, skill_hidden)
    common_token = _directions(rng, (), spec.token)
    own = _directions(rng, (M,), spec.token)
    skill_token = np.sqrt(spec.common_token) * common_token + np.sqrt(1 - spec.common_token) * own

    mode, skill = _success_arms(spec, rng, p0)
    success = mode >= 0
    xi = _directions(rng, (P, K), spec.hidden, first_zero=True)
    cluster = np.where(success, spec.cluster, 0.0)[..., None]
    residual = np.sqrt(cluster) * skill_hidden[skill] + np.sqrt(1 - cluster) * xi
    hidden = np.sqrt(1 - spec.common) * residual
    hidden[..., 0] += np.sqrt(spec.common)

    decoy = rng.random((P, K)) < spec.decoy + spec.decoy_hard * (1 - p0)[:, None]
    shown = np.where(success, skill, rng.integers(0, M, (P, K)))
    share = np.where(success | decoy, spec.skill_token, 0.0)[..., None]
    token = np.sqrt(share) * skill_token[shown] + np.sqrt(1 - share) * _directions(rng, (P, K), spec.token)

    bias = _bias(spec, rng, p0, success)
    return _arrays(spec, hidden, token, bias, success, mode, n_train, False)


def as_float32(world: WorldArrays) -> WorldArrays:
    """The same world in single precision: half the memory, and twice the numbers in a vector."""
    names = "hidden", "token", "bias", "hidden_t", "token_t"
    return world._replace(**{name: getattr(world, name).astype(np.float32) for name in names})


def _arrays(spec, hidden, token, bias, success, mode, n_train, linear) -> WorldArrays:
    arms_last = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (hidden, token)]
    return WorldArrays(hidden, token, bias, success, mode, n_train, spec.skills_per_prompt, linear,
                       (spec.false_negative, spec.false_positive), *arms_last)


def _linear_world(spec, rng, p0, n_train, skill_hidden) -> WorldArrays:
    """Arms mean the same in every prompt: skill m owns arms_per_skill of them, in order. A prompt shows
    its skills in its one hidden state, h = sqrt(c) u1 + sqrt(1-c) (sqrt(rho_S) C + sqrt(1-rho_S) xi),
    with C the direction of the sum of its skills' C_m; the head W is (d, K)."""
    P, K = len(p0), spec.arms
    chosen, n_skills = _skills(spec, rng, p0)
    shown = np.arange(spec.skills_per_prompt) < n_skills[:, None]
    owner = np.arange(K) // spec.arms_per_skill  # arms past the last skill belong to nobody
    match = (owner[None, :, None] == chosen[:, None, :]) & shown[:, None, :]
    mode = np.where(match.any(axis=2), match.argmax(axis=2), -1).astype(np.int64)
    centre = (skill_hidden[chosen] * shown[..., None]).sum(axis=1)
    centre /= np.linalg.norm(centre, axis=1, keepdims=True)
    xi = _directions(rng, (P,), spec.hidden, first_zero=True)
    hidden = np.sqrt(1 - spec.common) * (np.sqrt(spec.cluster) * centre + np.sqrt(1 - spec.cluster) * xi)
    hidden[:, 0] += np.sqrt(spec.common)
    success = mode >= 0
    return _arrays(spec, hidden[:, None, :], np.zeros((P, 0, 0)), _bias(spec, rng, p0, success), success, mode,
                   n_train, True)


def _bias(spec, rng, p0, success) -> np.ndarray:
    """Logits at W = 0, (P, K): noise, then a constant on the successes so that the solve rate is p0."""
    bias = rng.normal(0.0, 1.0, success.shape) * spec.bias_sd
    return np.where(success, bias + _shift_to(p0, bias, success)[:, None], bias)


def _draw_solve_rates(spec, rng) -> np.ndarray:
    test_mean = spec.solve_mean if spec.test_solve_mean is None else spec.test_solve_mean
    mean = np.repeat([spec.solve_mean, test_mean], [spec.train_prompts, spec.test_prompts])
    logit = mean + spec.solve_sd * rng.normal(size=len(mean))
    return np.clip(1 / (1 + np.exp(-logit)), spec.solve_min, 0.98)


def _directions(rng, shape: tuple, dim: int, first_zero: bool = False) -> np.ndarray:
    """Independent uniform unit vectors, (*shape, dim)."""
    x = rng.normal(size=(*shape, dim))
    if first_zero:
        x[..., 0] = 0.0
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _success_arms(spec, rng, p0) -> tuple[np.ndarray, np.ndarray]:
    """(mode, skill), each (P, K): mode is the index among the prompt's own skills, -1 for failures."""
    P, K, R = len(p0), spec.arms, spec.skills_per_prompt
    chosen, n_skills = _skills(spec, rng, p0)
    n_arms = rng.integers(1, spec.arms_per_skill + 1, (P, R))
    n_arms = np.where(np.arange(R) < n_skills[:, None], n_arms, 0)
    upto = np.cumsum(n_arms, axis=1)  # arms 0 .. upto[r]-1 show the skills 0 .. r
    mode = (np.arange(K)[None, :, None] >= upto[:, None, :]).sum(axis=2)
    mode = np.where(mode < R, mode, -1).astype(np.int64)
    skill = np.take_along_axis(chosen, np.maximum(mode, 0), axis=1)
    return mode, skill


def _skills(spec, rng, p0) -> tuple[np.ndarray, np.ndarray]:
    """(distinct skills (P, R), how many of them a prompt really has (P,))."""
    P, M, R = len(p0), spec.skills, spec.skills_per_prompt
    score = rng.random((P, M))
    if spec.split_skills:  # easy prompts live on the first half of the skills, hard ones on the second
        wrong_half = (np.arange(M) < M // 2) != (p0 > 0.25)[:, None]
        score = score + 2.0 * wrong_half
    return np.argsort(score, axis=1)[:, :R], rng.integers(1, R + 1, P)


def _shift_to(p0, bias, success) -> np.ndarray:
    """Constant on the success logits that makes the initial solve rate exactly p0, (P,)."""
    masses = []
    for arms in (success, ~success):
        z = np.where(arms, bias, -np.inf)
        top = z.max(axis=1, keepdims=True)
        masses.append(top[:, 0] + np.log(np.exp(z - top).sum(axis=1)))  # log-sum-exp: a large bias_sd is fine
    return np.log(p0 / (1 - p0)) - (masses[0] - masses[1])
