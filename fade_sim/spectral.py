"""Meters of the rank-1 funnel: residual correlations, and the stability of stale updates.

Arrays in, numbers out, NumPy only; also under `fade_sim.diagnostics`. The closed forms that turn an
eigenvalue into a growth factor live in `fade_sim.theory.stability`, which is pure NumPy too.
"""

from typing import NamedTuple

import numpy as np

from fade_sim.errors import InputError

# --- residual correlation ----------------------------------------------------------------------------


class ResidualCorrelation(NamedTuple):
    """Mean cosines within a prompt, averaged over the prompts with at least two such rows; NaN if there is none.

    `all`: two rollouts drawn independently, which may be the same row twice (cosine 1). `distinct`:
    given that the rows differ. The first mostly measures repeats and goes to 1 as a policy
    concentrates; quote the second, or both.
    """

    all_success: float
    all_failure: float
    distinct_success: float
    distinct_failure: float


def residual_correlation(hidden, weight, success, direction=None) -> ResidualCorrelation:
    """rho_S and rho_F: mean cosine of what is left of hidden states without their common direction.

    hidden: (P, K, d), one row for each distinct rollout of each of P prompts. weight: (P, K), its
    probability or count, 0 for padding. success: (P, K) bool. direction: (d,) the common direction
    u1; None takes the top right singular vector of all rows, weighted. Residual h - (h . u1) u1; rows
    without one are left out. With rho over all pairs, a sum over n successes has
    E|sum|^2 = (n (1 - rho) + n^2 rho) s^2. Claimed on language models: rho_S/rho_F of 2.4 to 4.4
    (arXiv 2607.01490; which pairs it took is not known).
    """
    hidden, weight, success = np.asarray(hidden, np.float64), np.asarray(weight, np.float64), np.asarray(success)
    if hidden.ndim != 3 or weight.shape != hidden.shape[:2] or success.shape != hidden.shape[:2]:
        raise InputError(f"hidden, weight, success have shapes {hidden.shape}, {weight.shape}, {success.shape}, "
                         "expected (P, K, d), (P, K), (P, K)")
    finite = np.isfinite(hidden).all() and np.isfinite(weight).all()
    if success.dtype != bool or not finite or (weight < 0).any():
        raise InputError("residual_correlation needs finite hidden states, weights of at least 0 and boolean success")
    if direction is None:
        rows = np.sqrt(weight)[..., None] * hidden
        second = np.einsum("pki,pkj->ij", rows, rows, optimize=True)
        direction = np.linalg.eigh(second)[1][:, -1]
    u = np.asarray(direction, dtype=np.float64)
    if u.shape != hidden.shape[2:] or not np.linalg.norm(u) > 0:
        raise InputError(f"direction has shape {u.shape}, expected ({hidden.shape[2]},) and not zero")
    u = u / np.linalg.norm(u)
    residual = hidden - (hidden @ u)[..., None] * u
    length = np.linalg.norm(residual, axis=-1)
    has = length > 1e-12 * np.linalg.norm(hidden, axis=-1)
    unit = residual / np.where(has, length, 1.0)[..., None]
    pairs = [_pair_cosines(unit, np.where(has & kind, weight, 0.0)) for kind in (success, ~success)]
    return ResidualCorrelation(pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1])


def _pair_cosines(unit, weight) -> tuple[float, float]:
    """(all pairs, distinct pairs) of weighted unit rows, averaged over the prompts with two rows or more."""
    several = (weight > 0).sum(axis=1) > 1
    if not several.any():
        return float("nan"), float("nan")
    unit, weight = unit[several], weight[several]
    total, same = weight.sum(axis=1) ** 2, (weight**2).sum(axis=1)
    cosines = (np.einsum("pk,pkd->pd", weight, unit) ** 2).sum(axis=1)  # sum_ab w_a w_b cos_ab
    return float((cosines / total).mean()), float(((cosines - same) / (total - same)).mean())


# --- stability of stale updates ----------------------------------------------------------------------------


class Stability(NamedTuple):
    """Meter of a run on stale rollouts without importance ratio."""

    Lambda: float  # step * lag * lambda_max(E_x[(m_F - m_S) F_x]): above 1 the update is unstable
    growth: float  # per step, of the fastest perturbation along an eigenvector at either end
    delta_min: float  # smallest stable delta of an asymmetric rule with this m_S


def stability(scores, p, m_S, m_F, step: float, lag: int, *, cross_validate: bool = True) -> Stability:
    """Lambda, growth factor and safe floor of delta, from sampled scores.

    scores: for each of P prompts an array (n_x, D) of score vectors grad log pi of its rollouts, in
    the order drawn, n_x >= 2 (1 if not cross_validate). D should cover all trained parameters: a part
    of them understates Lambda. p: solve rates (P,). m_S, m_F: exact masses (P,), or functions of p
    such as lambda p: masses(method, G, p)[0]. step: learning rate; lag: age of the rollouts in updates.

    cross_validate (the default): eigenvectors fitted on one half of each prompt's rollouts and
    evaluated on the other, both ways: low on average, and delta_min with it. False: in-sample: high,
    by much for heavy-tailed scores. Quote both, and take 1000 rollouts or more. Scores that are too
    long to hold: see `coordinates`.
    """
    from fade_sim.theory.stability import growth_factor, safe_delta, stability_number  # the simulator never needs it

    p = np.asarray(p, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"p has shape {p.shape}, expected solve rates (P,) in [0, 1]")
    m_S, m_F = (np.broadcast_to(np.asarray(m(p) if callable(m) else m, dtype=np.float64), p.shape) for m in (m_S, m_F))
    rows = _Rows(scores, cross_validate)
    low, high = rows.range(m_F - m_S)
    lambda_S = max(rows.range(m_S)[1], 0.0)
    growth = max(growth_factor(step * low, lag), growth_factor(step * high, lag))
    return Stability(float(stability_number(step, lag, high)), float(growth), float(safe_delta(step, lag, lambda_S)))


def fisher_range(scores, weight, *, cross_validate: bool = False) -> tuple[float, float]:
    """(smallest, largest) eigenvalue of E_x[weight(x) F_x], F_x = mean of s s^T over rollouts of prompt x.

    scores: P arrays (n_x, D); weight: (P,), any signs. Never forms a D x D matrix where D exceeds the
    number n of rollouts: then all comes from the n x n Gram matrix, and 0 is in the range. F_x is not
    centred: scores have mean zero. cross_validate: see `stability`.
    """
    return _Rows(scores, cross_validate).range(weight)


class _Rows:
    """Scores of all prompts in at most n coordinates, and the two halves of each prompt."""

    def __init__(self, scores, cross_validate: bool):
        scores = [np.asarray(s, dtype=np.float64) for s in scores]
        least = 2 if cross_validate else 1
        if not scores or any(s.ndim != 2 or len(s) < least or s.shape[1:] != scores[0].shape[1:] for s in scores):
            raise InputError(f"scores must be arrays (n_x, D) of one D, with n_x of at least {least}")
        rows = np.concatenate(scores)
        if not np.isfinite(rows).all():
            raise InputError("scores have non-finite entries")
        self.wide = rows.shape[1] > len(rows)
        self.rows = coordinates(rows @ rows.T) if self.wide else rows
        size = np.array([len(s) for s in scores])
        self.prompts, self.prompt = len(size), np.repeat(np.arange(len(size)), size)
        half = np.concatenate([np.arange(n) % 2 for n in size])
        self.parts = [half == 0, half == 1] if cross_validate else [np.ones(len(rows), dtype=bool)]

    def range(self, weight) -> tuple[float, float]:
        weight = np.asarray(weight, dtype=np.float64)
        if weight.shape != (self.prompts,) or not np.isfinite(weight).all():
            raise InputError(f"weight has shape {weight.shape}, expected ({self.prompts},), a finite number per prompt")
        matrices = [self._matrix(weight, part) for part in self.parts]
        ends = []
        for fit, judge in zip(matrices, matrices[::-1], strict=True):
            vectors = np.linalg.eigh(fit)[1][:, [0, -1]]
            ends.append(((judge @ vectors) * vectors).sum(axis=0))  # in-sample: the eigenvalues themselves
        low, high = np.mean(ends, axis=0).tolist()
        return (min(low, 0.0), max(high, 0.0)) if self.wide else (low, high)

    def _matrix(self, weight, part):
        """E_x[weight(x) F_x] from a part of the rollouts, in the coordinates of the rows."""
        prompt, rows = self.prompt[part], self.rows[part]
        share = weight / self.prompts / np.bincount(prompt, minlength=self.prompts)
        return rows.T @ (share[prompt, None] * rows)


def coordinates(gram) -> np.ndarray:
    """Rows X (n, r), r <= n, with X X^T = gram: stand-ins for n score vectors known by inner products only.

    Eigenvalues of weighted sums of s s^T depend on nothing else. Split X by prompt and pass it as scores.
    """
    gram = np.asarray(gram, dtype=np.float64)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not np.isfinite(gram).all():
        raise InputError(f"gram has shape {gram.shape}, expected finite inner products (n, n)")
    value, vector = np.linalg.eigh((gram + gram.T) / 2.0)
    keep = value > 1e-14 * max(value[-1], 0.0)
    return vector[:, keep] * np.sqrt(value[keep])
