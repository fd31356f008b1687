"""Rewards to advantages: the compiled gather, the NumPy and torch core, ids in any order, against copies and loops."""

import numpy as np

from benchmarks.checks import Check
from benchmarks.contenders import python_loop, trl_formula
from benchmarks.timing import Row, Timing, interleave, ratios, said
from fade_sim.advantage import advantages, make, resolve, weight_table

ALPHA, DELTA, G = 1.5, 0.7, 16
FADE = resolve(make("fade"), ALPHA, DELTA)


def rewards_of(groups: int) -> np.ndarray:
    """(groups, G) of 0.0 and 1.0 with uniform solve rates."""
    rng = np.random.default_rng(0)
    return (rng.random((groups, G)) < rng.random((groups, 1))).astype(np.float64)


def gather():
    """The compiled gather (table (G+1, 2), rewards (P, G), out (P, G)), or None."""
    from fade_sim.sim import kernels

    return getattr(kernels, "gather", None)


def dense_cells(groups: int, with_torch: bool) -> dict:
    """Everything that turns rewards (P, G) into advantages, and the copies to compare with."""
    rewards = rewards_of(groups)
    bits, out, source = rewards.astype(np.uint8), np.empty_like(rewards), rewards.copy()
    table = weight_table(FADE, G)
    cells = {"copy": lambda: np.copyto(out, source), "core": lambda: advantages(rewards, None, FADE)}
    if compiled := gather():
        cells["gather"] = lambda: compiled(table, bits, out)
        cells["widening copy"] = lambda: np.copyto(out, bits)
    if with_torch:
        import torch

        tensor = torch.tensor(rewards, dtype=torch.float32)
        flat, copied = tensor.view(-1), torch.empty_like(tensor)
        cells["torch copy"] = lambda: copied.copy_(tensor)
        cells["torch core"] = lambda: advantages(tensor, None, FADE)
        cells["TRL"] = lambda: trl_formula.advantages(flat, G)
    return cells


def shuffled(rollouts: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and group ids of groups of G, in random order."""
    order = np.random.default_rng(1).permutation(rollouts // G * G)
    return rewards_of(rollouts // G).reshape(-1)[order], np.repeat(np.arange(rollouts // G), G)[order]


def shuffled_cells(rollouts: int, looped: int, with_torch: bool) -> dict:
    """The core on `rollouts` of them; the loops, whose cost per rollout does not change, on `looped`."""
    rewards, ids = shuffled(rollouts)
    few = shuffled(looped)
    floats, numbers = few[0].tolist(), few[1].tolist()
    out = np.empty_like(rewards)
    cells = {
        "core": lambda: advantages(rewards, ids, FADE),
        "copy": lambda: np.copyto(out, rewards),
        "plain loop": lambda: python_loop.plain(floats, numbers, ALPHA, DELTA),
    }
    if with_torch:
        import torch

        tensor = torch.tensor(few[0], dtype=torch.float32)
        cells["torch loop"] = lambda: python_loop.torch_loop(tensor, numbers, ALPHA, DELTA)
    return cells


def checks(with_torch: bool) -> list[Check]:
    """All of them weigh alike, on a small batch."""
    rewards = rewards_of(100)
    wanted = advantages(rewards, None, FADE)
    flat, ids = shuffled(1600)
    in_order = advantages(flat, ids, FADE)
    found = {"plain loop": (python_loop.plain(flat.tolist(), ids.tolist(), ALPHA, DELTA), in_order, 1e-12)}
    if compiled := gather():
        out = np.empty_like(rewards)
        compiled(weight_table(FADE, G), rewards.astype(np.uint8), out)
        found["gather"] = out, wanted, 0.0
    if with_torch:
        import torch

        narrow = torch.tensor(rewards, dtype=torch.float32)
        found["torch core"] = advantages(narrow, None, FADE), wanted, 1e-7
        found["torch loop"] = python_loop.torch_loop(torch.tensor(flat, dtype=torch.float32), ids.tolist(), ALPHA,
                                                     DELTA), in_order, 1e-6
        trl = trl_formula.advantages(narrow.view(-1), G).view(narrow.shape)
        found["TRL's formula"] = trl, advantages(rewards, None, make("grpo_trl")), 1e-5
    done = []
    for name, (got, want, tolerance) in found.items():
        difference = float(np.abs(np.asarray(got) - want).max())
        done.append(Check(f"{name} = core", difference <= tolerance, f"largest difference {difference:.1e}"))
    return done


def per_rollout(timing: Timing, rollouts: int) -> Timing:
    return Timing(*([t / rollouts for t in column] for column in timing))


def section(options) -> list[Row]:
    """Groups in order, then ids in any order."""
    for check in checks(options.torch):
        options.require(check)
    groups = 10**5 if options.quick else 10**6
    dense = interleave(dense_cells(groups, options.torch), options.rounds, options.seconds)
    size = f"{groups:.0e}".replace("e+0", "e") + f" x {G}"
    rows = []

    def add(what: str, over: Timing, under: Timing, *goal, more_is_better=False, shown=None) -> None:
        rows.append(Row("advantages", what, ratios(over, under), *goal, more_is_better=more_is_better,
                        note=shown or said(over)))

    if "gather" in dense:
        add(f"compiled gather, {size} / plain copy of the same bytes, uint8 to f64", dense["gather"],
            dense["widening copy"], 1.1, 1.2)
        add(f"compiled gather, {size}, uint8 to f64 / plain copy, f64 to f64", dense["gather"], dense["copy"])
    else:
        options.say("compiled gather: fade_sim.sim.kernels has no `gather`, so its goal is not measured")
    add(f"NumPy core, {size} / plain copy, f64", dense["core"], dense["copy"], 6, 8)
    if options.torch:
        add(f"TRL's formula / torch core, {size}, f32", dense["TRL"], dense["torch core"], 5, 3, more_is_better=True,
            shown=f"{said(dense['TRL'])}; core {said(dense['torch core'])}")
        add(f"torch core, {size} / plain copy, f32", dense["torch core"], dense["torch copy"])

    rollouts, looped = 10**6, 20_000
    mixed = interleave(shuffled_cells(rollouts, looped, options.torch), options.rounds, options.seconds)
    loops = {name: per_rollout(mixed[name], looped) for name in mixed if name.endswith("loop")}
    core = per_rollout(mixed["core"], rollouts)
    add("NumPy core, 1e6 rollouts in any order / plain copy, f64", mixed["core"], mixed["copy"])
    for name, what, goal in (("torch loop", "Python loop over groups, torch tensors", (300, 100)),
                             ("plain loop", "Python loop over groups, plain floats", ())):
        if name in loops:
            add(f"{what} / NumPy core, 1e6 rollouts in any order", loops[name], core, *goal, more_is_better=True,
                shown=f"{said(loops[name])} a rollout, timed on {looped}; core {said(core)}")
    return rows
