"""Predicted one-step change of the entropy of a softmax policy, H = -sum_a pi_a log pi_a, in nats.

A prompt has K arms (possible rollouts), probabilities pi = softmax(z), successes S with p = P(S),
failures F, q = 1 - p. The weight of an arm is W_a = w_S on S and -w_F on F; the masses are
m_S = p w_S and m_F = q w_F, and D = E[-log pi | S] - E[-log pi | F] is the surprisal gap. The
numbers on the code lines are these formulas; all hold up to O(step^2) but 4 and 5:

    0  any logit step:       dH = -Cov_pi(log pi, dz)
    1  dz = step W:          dH = step D (q m_S + p m_F); no term in m_S - m_F
    2  softmax gradient:     dH = -step (w_S + w_F) sum_a pi_a^2 (log pi_a + H) (1[a in S] - p)
    3  linear head z = Phi theta and bilinear head z_a = v_a^T W h_a: formula 0 with their dz
    4  2 without centring:   adds -step (m_S - m_F) Cov_pi(log pi, pi)
    5  *claimed* in the literature, a heuristic only: step ((m_S - m_F) H - Cov_pi(W, log pi))
    6  split:                H = h(p) + p H_S + q H_F, h the binary entropy
    7  sampled groups:       E[dH] = H(z + E dz) - H(z) + 1/2 tr(Hess_z H Cov dz) + O(step^3)

Arrays in, numbers out. policy and success are (..., K); w_S and w_F are scalars or (...), both
non-negative for a rule that rewards success; every result is (...). Formulas 4, 5: as summarised
from arXiv 2607.01490. The others are derived and tested against finite differences.
"""

from typing import NamedTuple

import numpy as np

from fade_sim.errors import InputError
from fade_sim.theory.masses import expect

# --- the first-order change ---------------------------------------------------------------------------


def entropy_change(policy, dz):
    """dH (...) in nats of any small logit step dz (..., K): exact to first order.

    A constant added to all logits changes nothing.

    >>> round(float(entropy_change([0.5, 0.25, 0.25], [0.1, 0.0, 0.0])), 6)  # -0.1 * .25 * log 2
    -0.017329
    """
    pi, dz = _policy(policy), np.asarray(dz, dtype=np.float64)
    return -_covariance(pi, _log(pi), dz)  # 0


def logit_step(policy, success, w_S, w_F, step):
    """dH (...) of the natural-gradient step dz = step * W: formula 1.

    Entropy falls exactly when successes are less surprising than failures (D < 0), whatever the
    balance of m_S and m_F.
    """
    pi, hit, p = _arms(policy, success)
    q = 1.0 - p
    surprisal = -_log(pi)
    in_s = (pi * hit * surprisal).sum(axis=-1)  # p E[-log pi | S]
    in_f = (pi * ~hit * surprisal).sum(axis=-1)
    return step * (q * in_s - p * in_f) * (np.asarray(w_S) + w_F)  # 1: step p q D (w_S + w_F)


def table_step(policy, success, w_S, w_F, step):
    """dH (...) of the policy gradient on a table of logits, dz_a = step pi_a (W_a - sum_b pi_b W_b): formula 2.

    Depends on the rule through w_S + w_F only (its slope): in expectation the sign drops out.
    """
    pi, hit, p = _arms(policy, success)
    H = entropy(pi)
    terms = pi**2 * (_log(pi) + H[..., None]) * (hit - p[..., None])
    return -step * (np.asarray(w_S) + w_F) * terms.sum(axis=-1)  # 2


def linear_step(policy, features, dtheta):
    """dH (...) of a linear head z_a = theta . phi_a: features (..., K, D), dtheta (D,) or (..., D). Formula 3."""
    dz = np.einsum("...kd,...d->...k", np.asarray(features, dtype=np.float64), dtheta)  # 3
    return entropy_change(policy, dz)


def bilinear_step(policy, token, hidden, dhead):
    """dH (...) of a head z_a = v_a^T W h_a: token (..., K, V), hidden (..., K, d), dhead (V, d). Formula 3.

    dhead is the whole change of W, from this prompt or from others that share the head.
    """
    token, hidden = np.asarray(token, dtype=np.float64), np.asarray(hidden, dtype=np.float64)
    dz = ((token @ np.asarray(dhead, dtype=np.float64)) * hidden).sum(axis=-1)  # 3
    return entropy_change(policy, dz)


def head_kernel(token, hidden):
    """(V V^T) o (H H^T), (..., K, K): the logit step of a bilinear head is its update per arm times this.

    An update coef (K,) of the arms moves W by step sum_a coef_a v_a h_a^T and so z by step kernel @ coef;
    a covariance C of coef becomes step^2 kernel C kernel.
    """
    token, hidden = np.asarray(token, dtype=np.float64), np.asarray(hidden, dtype=np.float64)
    return (token @ token.swapaxes(-1, -2)) * (hidden @ hidden.swapaxes(-1, -2))


# --- two formulas of the literature, for comparison ------------------------------------------------------


def uncentred_step(policy, success, w_S, w_F, step):
    """dH (...) of dz_a = step pi_a W_a, a table step whose centring was dropped: formula 4.

    Not what a softmax policy gradient does: score functions have mean zero. The extra term has the
    direction of the claim of arXiv 2607.01490 (success bias collapses entropy).
    """
    pi, _, p = _arms(policy, success)
    bias = p * w_S - (1.0 - p) * w_F  # m_S - m_F
    return table_step(policy, success, w_S, w_F, step) - step * bias * _covariance(pi, _log(pi), pi)  # 4


def claimed_change(policy, success, w_S, w_F, step):
    """The *claimed* dH (...): a named heuristic, never the truth. Formula 5, after arXiv 2607.01490.

    It equals -step E[W log pi]; its term in (m_S - m_F) H has the opposite sign to the claim in
    words, and its sign can be wrong (logit_step and table_step are right to first order).
    """
    pi, hit, p = _arms(policy, success)
    W = np.where(hit, np.asarray(w_S)[..., None], -np.asarray(w_F)[..., None])
    bias = p * w_S - (1.0 - p) * w_F
    return step * (bias * entropy(pi) - _covariance(pi, W, _log(pi)))  # 5


# --- successes and failures apart --------------------------------------------------------------------------


class Split(NamedTuple):
    """Changes of H, of the solve rate p, and of the entropies within successes and within failures."""

    dH: np.ndarray
    dp: np.ndarray
    dH_S: np.ndarray
    dH_F: np.ndarray


def split_change(policy, success, dz) -> Split:
    """First-order changes under any logit step dz (..., K): formula 6. Each (...).

    They add up: dH = log(q/p) dp + (H_S - H_F) dp + p dH_S + q dH_F. A set without probability has
    no entropy: its change is NaN.
    """
    pi, hit, _ = _arms(policy, success)
    dz = np.asarray(dz, dtype=np.float64)
    inside, outside = _conditional(pi, hit)
    dp = _covariance(pi, hit.astype(np.float64), dz)
    return Split(-_covariance(pi, _log(pi), dz), dp,
                 -_covariance(inside, _log(inside), dz), -_covariance(outside, _log(outside), dz))  # 6


# --- second order: sampled groups ------------------------------------------------------------------------


class Moments(NamedTuple):
    """Mean (..., K) and covariance (..., K, K) of the update of one sampled group, per unit step."""

    mean: np.ndarray
    covariance: np.ndarray


def group_moments(policy, success, table) -> Moments:
    """Exact moments of coef_a = Am_a - pi_a sum_b Am_b, Am_a = (1/G) sum of the weights that fell on arm a.

    One group of G on-policy rollouts, weights from a table (G+1, 2): row c of c successes, column 0 a
    success, column 1 a failure, signed as added to the objective. A table of logits moves by
    step * coef, a bilinear head by step * head_kernel @ coef; independent groups add.

    Derivation: given c, the successes are c draws from s = pi/p on S and the failures G - c draws
    from f = pi/q on F, and sum_b Am_b = (c t_S + (G-c) t_F)/G is fixed. Since s - pi = q (s - f) and
    f - pi = -p (s - f), with a(c) = (q c t_S(c) - p (G-c) t_F(c))/G:

        E[coef | c] = a(c) (s - f)
        Cov(coef)   = E[c t_S^2]/G^2 (diag s - s s^T) + E[(G-c) t_F^2]/G^2 (diag f - f f^T)
                      + Var(a(c)) (s - f)(s - f)^T

    and E a = q m_S + p m_F. The sign axis enters here: success weights alone stir the success set,
    failure weights alone the failure set.
    """
    pi, hit, p = _arms(policy, success)
    table = _table(table)
    G = len(table) - 1
    c = np.arange(G + 1)
    q = 1.0 - p
    t_S, t_F = table.T
    x, y = c * t_S / G, (G - c) * t_F / G  # a(c) = q x - p y
    columns = x, y, x * x, x * y, y * y, x * t_S / G, y * t_F / G
    X, Y, XX, XY, YY, stir_S, stir_F = expect(G, p, columns)
    mean_a = q * X - p * Y
    var_a = q**2 * (XX - X**2) - 2.0 * p * q * (XY - X * Y) + p**2 * (YY - Y**2)
    inside, outside = (np.nan_to_num(x) for x in _conditional(pi, hit))
    towards = inside - outside
    covariance = (
        stir_S[..., None, None] * _multinomial(inside)
        + stir_F[..., None, None] * _multinomial(outside)
        + var_a[..., None, None] * towards[..., :, None] * towards[..., None, :]
    )
    return Moments(mean_a[..., None] * towards, covariance)


def second_order(policy, covariance):
    """1/2 tr(Hess_z H Cov(dz)), (...): the mean change of H that sampling noise alone makes. Formula 7.

    covariance: Cov(dz), (..., K, K), for example step**2 * group_moments(...).covariance. With
    u_a = -log pi_a - H the Hessian is diag(pi (u - 1)) + pi_a pi_b (1 - u_a - u_b).
    """
    pi, C = _policy(policy), np.asarray(covariance, dtype=np.float64)
    if C.shape[-2:] != (pi.shape[-1], pi.shape[-1]):
        raise InputError(f"covariance has shape {C.shape}, expected (..., {pi.shape[-1]}, {pi.shape[-1]})")
    u = -_log(pi) - entropy(pi)[..., None]
    diagonal = (pi * (u - 1.0) * np.diagonal(C, axis1=-2, axis2=-1)).sum(axis=-1)
    rows = np.einsum("...a,...ab,...b->...", pi, C, pi)
    tilted = np.einsum("...a,...ab,...b->...", pi * u, C, pi)
    return 0.5 * (diagonal + rows - 2.0 * tilted)  # 7


def second_order_split(policy, success, covariance):
    """(dH, dH_S, dH_F) of formula 7, each (...): the same term for H and for its conditional parts.

    H_S is the entropy of pi/p on S, a softmax of its own logits, so it has the same Hessian there.
    """
    pi, hit, _ = _arms(policy, success)
    inside, outside = _conditional(pi, hit)
    return tuple(second_order(x, covariance) for x in (pi, inside, outside))


# --- shared ---------------------------------------------------------------------------------------------


def entropy(policy):
    """H (...) in nats of probabilities (..., K)."""
    pi = np.asarray(policy, dtype=np.float64)
    return -(pi * _log(pi)).sum(axis=-1)


def _policy(policy) -> np.ndarray:
    pi = np.asarray(policy, dtype=np.float64)
    if pi.ndim < 1 or np.isinf(pi).any() or (pi < 0).any():
        raise InputError(f"policy has shape {pi.shape} and must hold probabilities (..., K)")
    if (abs(pi.sum(axis=-1) - 1.0) > 1e-6).any():
        raise InputError("policy does not sum to 1 over its last axis")
    return pi


def _arms(policy, success):
    """Policy (..., K), success as bool (..., K), solve rate (...)."""
    pi, hit = _policy(policy), np.asarray(success)
    if hit.dtype != bool or hit.shape[-1:] != pi.shape[-1:]:
        raise InputError(f"success is {hit.dtype} {hit.shape}, expected True or False for each arm of {pi.shape}")
    pi, hit = np.broadcast_arrays(pi, hit)
    return pi, hit, np.asarray(np.clip((pi * hit).sum(axis=-1), 0.0, 1.0))


def _conditional(pi, hit):
    """pi restricted to the successes and to the failures, each normalised; NaN where it has no mass."""
    with np.errstate(invalid="ignore"):
        return tuple(x / x.sum(axis=-1, keepdims=True) for x in (pi * hit, pi * ~hit))


def _log(pi):
    """log pi with log 0 = 0: such an arm has weight 0 wherever this is used."""
    return np.log(np.where(pi > 0, pi, 1.0))


def _covariance(pi, x, y):
    """Cov_pi(x, y) over the last axis."""
    centred = x - (pi * x).sum(axis=-1, keepdims=True)
    return (pi * centred * y).sum(axis=-1)


def _multinomial(share):
    """Covariance of one draw: diag s - s s^T."""
    return share[..., None] * np.eye(share.shape[-1]) - share[..., :, None] * share[..., None, :]


def _table(table) -> np.ndarray:
    table = np.asarray(table, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != 2 or len(table) < 2:
        raise InputError(f"table has shape {table.shape}, expected (G+1, 2) with G >= 1")
    return table
