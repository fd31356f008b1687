"""Weights as a table: row c of a (G+1, 2) table weighs a group with c successes of G rollouts.

Everything downstream reads tables or advantages and never a method's name.
"""

import sys
import warnings
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fade_sim.advantage import controller
from fade_sim.advantage.methods import Method, make, resolve
from fade_sim.advantage.rules import Group
from fade_sim.advantage.rules_scaled import Batch
from fade_sim.errors import InputError


class BatchStats(NamedTuple):
    """Successes and sizes of the groups of a batch, each of shape (P,)."""

    successes: np.ndarray
    sizes: np.ndarray


def weight_table(method: Method, group_size: int, *, batch: BatchStats | None = None) -> np.ndarray:
    """Signed weights, float64 (G+1, 2): row c = c successes; column 0 a success, column 1 a failure.

    Signed as added to the objective: dr_grpo row c is (1 - c/G, -c/G). The two cells that no
    rollout can have, [0, 0] and [G, 1], are 0. Always finite. Raises InputError for an adaptive
    method (resolve it first) and for a group size at which the rule is undefined. `batch` is read
    only by rules that depend on the whole batch, and they need it.
    """
    check_method(method)
    if isinstance(group_size, (bool, np.bool_)) or not isinstance(group_size, (int, np.integer)) or group_size < 1:
        raise InputError(f"group_size is {group_size!r}, expected an integer of at least 1")
    return _table(method, int(group_size), _moments(method, batch)).copy()


def batch_moments(batch: BatchStats) -> Batch:
    """What rules of the batch read, from the successes and sizes of its groups (binary rewards)."""
    wrong = InputError("batch: expected integer successes and sizes of at least one group, 0 <= successes <= sizes")
    try:
        c, n = (np.asarray(x, dtype=np.float64) for x in batch)
    except (TypeError, ValueError):
        raise wrong from None
    if c.shape != n.shape or c.ndim != 1 or not len(c) or not (np.isfinite(c) & np.isfinite(n)).all():
        raise wrong
    if (n < 1).any() or (c < 0).any() or (c > n).any() or (c % 1).any() or (n % 1).any():
        raise wrong
    rate, total = c / n, n.sum()
    mean = c.sum() / total
    variance = mean * (1 - mean)
    bessel = total / (total - 1) if total > 1 else 0.0  # a single rollout has no spread
    centred = (n * rate * (1 - rate)).sum() / total  # r - rbar has mean 0 in every group
    return Batch(
        mean=float(mean), std=float((variance * bessel) ** 0.5), std_population=float(variance**0.5),
        std_centred=float((centred * bessel) ** 0.5), group_mean=float(rate.mean()), group_variance=float(rate.var()),
        mixed=float(n[(c > 0) & (c < n)].sum() / total),
    )


def _moments(method: Method, batch: BatchStats | None) -> Batch | None:
    if not method.rule.reads_batch:
        return None
    if batch is None:
        raise InputError(f"{method.name} reads the whole batch: pass batch=BatchStats(successes, sizes)")
    return batch_moments(batch)


@lru_cache(maxsize=1024)
def _table(method: Method, G: int, moments: Batch | None = None) -> np.ndarray:
    rule, params = method.rule, method.params
    if rule.adaptive:
        raise InputError(f"{method.name} is adaptive: pass resolve(method, *controller.gains(state)) instead")
    rule.check_size(params, G)
    table = np.zeros((G + 1, 2))
    if method.name == "table":
        table[:] = params["weights"]
    elif G > 1 or not rule.group_baseline:
        c = np.arange(G + 1)
        group = Group(mean=c / G, variance=(c / G) * (1 - c / G), inv_size=1 / G)
        table[:, 0] = method.expression(1.0, group, moments)
        table[:, 1] = method.expression(0.0, group, moments)
    else:
        table[1, 0] = rule.singleton
    table[0, 0] = table[G, 1] = 0.0
    table += 0.0  # -0.0 becomes 0.0
    if not np.isfinite(table).all():
        raise InputError(f"{method.label} overflows at group size {G}")
    table.setflags(write=False)
    return table


def advantages(rewards, groups=None, method: Method | None = None, *, valid=None, batch=None, continuous=False):
    """Advantage of each rollout, from rewards and group ids.

    rewards: (N,) with ids `groups` (N,) of any integers in any order, ragged; or (P, G) with
    groups=None. NumPy, lists or torch in; the same kind, shape and device out. Floats keep their
    dtype (computed in float64, rounded once); ints and bools become float64, float32 on torch.
    valid: True where a rollout counts; False gives weight 0 and leaves the baseline.
    batch: groups that rules of the batch read; by default the groups given here. Rewards must be 0 or
    1; continuous=True takes [0, 1], where a success is a reward of at least
    the group mean. Raises InputError on anything else, naming the first offender.
    """
    check_method(method)
    if method.rule.adaptive:
        _table(method, 2)  # raises, and says what to pass instead
    torch = sys.modules.get("torch") if hasattr(rewards, "detach") else None
    r = _rewards(rewards)
    dtype = _out_dtype(rewards, r, torch)
    if groups is None and valid is None and r.ndim == 2 and not continuous and (one := _successes(r)) is not None:
        out = _uniform(one, method, batch, dtype)
    else:
        out = _ragged(r.astype(np.float64, copy=False), groups, valid, batch, continuous, method, dtype)
    if torch is None:
        return out
    wanted = rewards.dtype if rewards.dtype.is_floating_point else torch.float32
    cast = torch.from_numpy(out).to(device=rewards.device, dtype=wanted)
    if out.dtype == np.float64 and not bool(torch.isfinite(cast).all()):  # a narrower type, bfloat16 for one
        raise InputError(_too_wide(method, out, wanted))
    return cast


def _out_dtype(rewards, r, torch):
    """What to compute the advantages as: NumPy's twin of the type that the caller gets."""
    if torch is not None:
        name = str(rewards.dtype if rewards.dtype.is_floating_point else torch.float32).removeprefix("torch.")
        return np.dtype(name if name in ("float32", "float64") else "float64")
    dtype = getattr(rewards, "dtype", None)
    return dtype if dtype is not None and dtype.kind == "f" else np.dtype(np.float64)


_BLOCK = 1 << 16  # rollouts at a time: what is computed of them stays in the cache


def _successes(r):
    """(True where the reward is 1 (P, G), successes of each group (P,)), or None where a reward is not 0 or 1."""
    P, G = r.shape
    one, count, ones = np.empty(r.shape, bool), np.empty(P), np.ones(G)
    rows = max(1, _BLOCK // G)
    floats = np.empty((min(rows, P), G))  # scratch: half a megabyte anew for each block would be page faults
    for i in range(0, P, rows):
        block = r[i : i + rows]
        np.equal(block, 1, out=one[i : i + rows])
        if np.count_nonzero(one[i : i + rows]) + np.count_nonzero(block == 0) != block.size:
            return None
        np.copyto(floats[: len(block)], one[i : i + rows])
        np.dot(floats[: len(block)], ones, out=count[i : i + rows])  # faster than a sum of bools
    return one, count


def _uniform(counted, method: Method, batch: BatchStats | None, dtype) -> np.ndarray:
    """Groups of one size, every rollout counts: a row of the table for each group."""
    one, count = counted
    P, G = one.shape
    _warn_singletons(np.full(P, G) if G == 1 else np.zeros(0), method)
    if batch is None and method.rule.reads_batch:
        batch = BatchStats(count, np.full(P, G))
    rows = max(1, _BLOCK // G)
    blocks = (slice(i, i + rows) for i in range(0, P, rows))
    first = 2 * count.astype(np.intp)[:, None]
    table = _table(method, G, _moments(method, batch))
    index = np.empty((min(rows, P), G), np.intp)
    pairs = ((block, np.add(first[block], one[block], out=index[: len(first[block])])) for block in blocks)
    return _look_up(table, pairs, one.shape, method, dtype)


def _look_up(table, indices, shape, method: Method, dtype) -> np.ndarray:
    """Weights (*shape) from (block, 2 row + reward) pairs, rounded once to the caller's type."""
    with np.errstate(over="ignore"):
        flat = table[:, ::-1].reshape(-1).astype(dtype)  # failure, success, by row
    out = np.empty(shape, dtype)
    for block, index in indices:  # mode: "raise" would buffer, and every index is in range
        np.take(flat, index, out=out[block], mode="clip")
    return out if np.isfinite(flat).all() else _finite(out, method, table, dtype)


def _finite(out, method: Method, values, dtype) -> np.ndarray:
    if not np.isfinite(out).all():
        raise InputError(_too_wide(method, values, dtype))
    return out


def _too_wide(method: Method, values, dtype) -> str:
    if not np.isfinite(values).all():
        return f"{method.label} overflows on these rewards"
    return f"{method.label}: weights up to {np.abs(values).max():g} do not fit {dtype}, use a wider float"


def _ragged(r, groups, valid, batch, continuous, method: Method, dtype) -> np.ndarray:
    """Groups of any sizes in any order, some rollouts left out."""
    shape = r.shape
    ids = _groups(groups, shape)
    keep = None if valid is None else _valid(valid, shape)
    r = r.reshape(-1)
    _check_values(r, keep, continuous)
    if keep is not None:
        r = np.where(keep, r, 0.0)
    size = np.bincount(ids, weights=keep)
    total = np.bincount(ids, weights=r, minlength=len(size))
    _warn_singletons(size, method)
    if continuous:
        out = _continuous(r, ids, np.ones(len(r), bool) if keep is None else keep, size, total, method)
        with np.errstate(over="ignore"):
            out = _finite(out.astype(dtype, copy=False), method, out, dtype)
    else:
        if batch is None and method.rule.reads_batch and size.any():
            batch = BatchStats(total[size > 0], size[size > 0])
        out = _gather(r == 1, ids, size, total, method, batch, dtype)
    if keep is not None:
        out[~keep] = 0.0
    return out.reshape(shape)


def batch_scale(numerator: Method, denominator: Method, batch: BatchStats) -> float | None:
    """sum|A| of one method over sum|A| of another on the same batch; None where the latter is 0."""
    sums = [0.0, 0.0]
    for k, method in enumerate((numerator, denominator)):
        for c, G in zip(batch.successes, batch.sizes, strict=True):
            w = _table(method, int(G))[int(c)]
            sums[k] += c * abs(w[0]) + (G - c) * abs(w[1])
    return sums[0] / sums[1] if sums[1] > 0 else None


def step_table(method: Method, ctrl: controller.State, group_size: int, batch: BatchStats | None = None,
               scale_ratio=None) -> tuple[np.ndarray, controller.State]:
    """(signed weights (G+1, 2) of this step, new controller state), for static and adaptive methods alike.

    ctrl: already updated with this batch. batch: the groups of the step, for rules of the batch and for
    the scale controls. scale_ratio(full, base): sum|A| of one method over that of another where it is
    not measured on `batch`; None where the latter is 0.
    """
    if not method.rule.adaptive:
        return weight_table(method, group_size, batch=batch), ctrl
    full, base = resolve(method, *controller.gains(ctrl)), make("dr_grpo")
    control = method.rule.control
    if control == "none":
        return weight_table(full, group_size), ctrl
    ratio = batch_scale(full, base, batch) if scale_ratio is None else scale_ratio(full, base)
    if control == "ema":
        ctrl = controller.update_scale(ctrl, ratio)
        ratio = ctrl.scale
    ratio = 1.0 if ratio is None else ratio
    full, base = weight_table(full, group_size), weight_table(base, group_size)
    return (full / ratio if control == "unit" else ratio * base), ctrl


# --- input ------------------------------------------------------------------------------------------


def check_method(method) -> None:
    """Refuse what is not a Method, for example the name of one."""
    if not isinstance(method, Method):
        raise InputError(f"method is {method!r}, expected a Method, for example make('dr_grpo')")


def _plain(x):
    """A NumPy view of an array, list or torch tensor (bfloat16 has no NumPy twin: widened)."""
    if hasattr(x, "detach"):
        x = x.detach().resolve_neg()
        if str(x.dtype) == "torch.bfloat16":
            x = x.float()
        return x.cpu().numpy()
    if isinstance(x, np.ma.MaskedArray) and np.ma.getmaskarray(x).any():
        raise InputError("masked arrays are not read: pass the data and valid=~mask")
    return x


def _integer_ids(groups) -> np.ndarray:
    """Integer ids as an array; Python integers beyond 64 bits are renumbered."""
    plain = _plain(groups)
    try:
        ids = np.asarray(plain)
    except ValueError:
        raise InputError("group ids have rows of different lengths, expected one id per rollout") from None
    if ids.dtype.kind not in "iu" and isinstance(plain, (list, tuple)) and all(type(v) is int for v in plain):
        number = {v: i for i, v in enumerate(dict.fromkeys(plain))}
        return np.array([number[v] for v in plain], dtype=np.int64)
    return ids


def _rewards(rewards) -> np.ndarray:
    plain = _plain(rewards)
    if isinstance(plain, (list, tuple)):
        flat = [v for row in plain for v in (row if isinstance(row, (list, tuple)) else [row])]
        for i, v in enumerate(flat):
            if not isinstance(v, (int, float, np.number, np.bool_)):
                raise InputError(f"reward {i} is {v!r}, expected 0 or 1")
    try:
        r = np.asarray(plain)
    except ValueError:
        raise InputError("rewards has rows of different lengths: pass a flat list and group ids") from None
    if r.dtype.kind not in "fiub":
        raise InputError(f"rewards has dtype {r.dtype}, expected numbers 0 or 1")
    if r.ndim not in (1, 2) or r.size == 0:
        raise InputError(f"rewards has shape {r.shape}, expected (N,) with group ids, or (P, G)")
    return r


def _groups(groups, shape) -> np.ndarray:
    """Ids 0..n-1 per rollout, flat; any order and any integers in."""
    if groups is None:
        if len(shape) != 2:
            raise InputError("rewards is flat: pass group ids, or rewards of shape (P, G)")
        return np.repeat(np.arange(shape[0]), shape[1])
    ids = _integer_ids(groups)
    if ids.shape != shape or len(shape) != 1:
        raise InputError(f"{ids.size} group ids of shape {ids.shape} for rewards of shape {shape}, "
                         "expected one per rollout")
    if ids.dtype.kind not in "iu":
        raise InputError(f"group ids have dtype {ids.dtype}, expected integers")
    low = int(ids.min())
    if int(ids.max()) - low < 4 * ids.size:  # dense ids: no sort needed
        if ids.dtype.kind == "u":  # subtract before the cast: large ids do not fit int64
            return (ids - np.asarray(low, ids.dtype)).astype(np.int64)
        ids = ids.astype(np.int64, copy=False)
        return ids - low if low else ids
    return np.unique(ids, return_inverse=True)[1].reshape(-1)


def _valid(valid, shape) -> np.ndarray:
    try:
        keep = np.asarray(_plain(valid))
    except ValueError:
        raise InputError(f"valid has rows of different lengths, expected shape {shape}") from None
    if keep.shape != shape:
        raise InputError(f"valid has shape {keep.shape}, expected {shape}")
    if not np.isin(keep, (0, 1)).all():
        raise InputError("valid must be True or False for each rollout")
    return keep.reshape(-1).astype(bool)


def _check_values(r, keep, continuous) -> None:
    good = (r >= 0) & (r <= 1) if continuous else (r == 0) | (r == 1)
    if good.all():
        return
    bad = np.flatnonzero(~good if keep is None else keep & ~good)
    if bad.size:
        expected = "a number in [0, 1]" if continuous else "0 or 1"
        more = f" ({bad.size} such rewards)" if bad.size > 1 else ""
        value = repr(float(r[bad[0]])).removesuffix(".0")  # all digits: .9999999 is not "1"
        raise InputError(f"reward {bad[0]} is {value}, expected {expected}{more}")


def _warn_singletons(size, method: Method) -> None:
    lonely = int((size == 1).sum())
    if lonely and method.rule.group_baseline:
        warnings.warn(
            f"{lonely} of {int((size > 0).sum())} groups have a single rollout: {method.name} has no baseline for "
            f"them, so they get {'their raw reward' if method.rule.singleton else 'weight 0'} "
            "(are the group ids unique per rollout?)",
            stacklevel=4,
        )


# --- weights ----------------------------------------------------------------------------------------


def _gather(one, ids, size, total, method: Method, batch: BatchStats | None, dtype) -> np.ndarray:
    """Look each rollout up in the table of its group's size; one: True where its reward is 1."""
    if not size.any():
        return np.zeros(len(ids), dtype)
    moments = _moments(method, batch)
    offset = np.zeros(int(size.max()) + 1, dtype=np.int64)
    tables, at = [], 0
    for G in np.unique(size[size > 0]).astype(np.int64):
        offset[G] = at
        tables.append(_table(method, int(G), moments))
        at += G + 1
    first = 2 * (offset[size.astype(np.int64)] + total.astype(np.int64))
    blocks = (slice(i, i + _BLOCK) for i in range(0, len(ids), _BLOCK))
    indices = ((block, first[ids[block]] + one[block]) for block in blocks)
    return _look_up(np.concatenate(tables), indices, ids.shape, method, dtype)


def _continuous(r, ids, keep, size, total, method: Method) -> np.ndarray:
    """The expression itself, in float64, with exact zeros for groups of identical rewards."""
    if not method.rule.continuous or method.rule.reads_batch:
        raise InputError(f"{method.name} is defined for rewards 0 and 1 only, not for continuous=True")
    n = np.maximum(size, 1)
    highest, lowest = np.full(len(size), -np.inf), np.full(len(size), np.inf)
    np.maximum.at(highest, ids[keep], r[keep])
    np.minimum.at(lowest, ids[keep], r[keep])
    same = highest <= lowest
    mean = np.where(same & (size > 0), highest, total / n)  # a group without valid rollouts: 0
    centred = np.where(keep, r - mean[ids], 0.0)
    variance = np.where(same, 0.0, np.bincount(ids, weights=centred**2, minlength=len(size)) / n)
    group = Group(mean=mean[ids], variance=variance[ids], inv_size=1 / n[ids])
    out = np.where(keep, r, 0.0)
    out = np.asarray(method.expression(out, group)) + np.zeros_like(r)
    alone = (size == 1) & method.rule.group_baseline
    return np.where(alone[ids], method.rule.singleton * r, out)
