"""What must hold before anything is timed: the kernel is right, and nobody does less work than it does."""

from typing import NamedTuple

import numpy as np

from benchmarks.problem import SHAPES, Problem, Restarted, Shape, fade, regime_of, solve_rate
from fade_sim.sim import make_world, reference

TOLERANCE = 1e-9  # sums are reordered and exp is another library's; one flipped draw would show at 1e-3
RARE = 1e-4  # p-value below which draws are called wrong
CLOSE = 0.02  # solve rates after the timed steps; without its updates a contender would be off by .1 or more


class Check(NamedTuple):
    what: str
    passed: bool
    found: str


def agreement(what: str, regime, contender, steps: int) -> Check:
    """Largest difference of head and table between the kernel and the plain NumPy reference."""
    world = make_world(regime.world, 0)
    fast, slow = (Restarted(regime, contender, world) for _ in range(2))
    fast.advance(steps)
    plain, ctrl = slow.replica, contender.controller
    for step in range(steps):
        ctrl = reference.train_step(world, plain.dyn, plain.method, ctrl, plain.factor, plain.state, step)
    differences = [float(np.abs(getattr(fast.replica.state, name) - getattr(plain.state, name)).max())
                   for name in ("head", "theta", "table")]
    moved = max(np.abs(plain.state.head).max(), np.abs(slow.learned()).max())
    return Check(f"kernel = reference, {what}, {steps} steps", bool(max(differences) < TOLERANCE < moved),
                 f"largest difference {max(differences):.1e}, largest change {moved:.2g}")


def drawn(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """(draws of each arm (K,), policy (K,)) of one prompt, about 200 000 draws of the kernel.

    The prompt is drawn in every group of one step, with weights of +1 (success) and -1, so the change of the
    table, lr/G (n_a A_a - pi_a sum_b n_b A_b), gives back the whole numbers n_a.
    """
    groups = -(-200_000 // shape.group_size)
    raw = {"method": {"name": "reinforce_pm1"},
           "train": {"prompts": groups, "group_size": shape.group_size, "lr": 0.0, "lr_table": 1.0},
           "world": {"train_prompts": 1, "test_prompts": 1, "arms": shape.arms, "hidden": 2, "token": 2,
                     "solve_sd": 0.0}}
    regime, contender = fade(raw)
    world = make_world(regime.world, 0)
    run = Restarted(regime, contender, world)
    run.advance(1)
    pi = np.exp(world.bias[0] - np.logaddexp.reduce(world.bias[0]))
    sign = np.where(world.success[0], 1.0, -1.0)
    change = run.learned()[0]
    total = (groups - sign @ change) / (sign @ pi)
    return shape.group_size * sign * (change + pi * total), pi


def draws(shape: Shape) -> Check:
    """The kernel's draws are whole numbers and fit the policy."""
    counts, pi = drawn(shape)
    whole = np.abs(counts - np.rint(counts)).max() < 1e-3 and counts.min() > -0.5
    p_value = chi_square(counts, pi)
    return Check(f"draws ~ policy, K {shape.arms}, G {shape.group_size}", bool(whole and p_value > RARE),
                 f"chi-square p = {p_value:.3f}, {counts.sum():.0f} draws, each arm expected at least "
                 f"{counts.sum() * pi.min():.0f} times")


def chi_square(counts: np.ndarray, pi: np.ndarray) -> float:
    """p-value of these draws (K,) under the policy (K,)."""
    from scipy.stats import chi2

    expected = counts.sum() * pi
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), len(pi) - 1))


def same_work(what: str, logits: np.ndarray, problem: Problem, kernel: float) -> Check:
    """A contender trains as the kernel does: solve rate after the timed steps."""
    before, after = solve_rate(problem.bias, problem.success), solve_rate(logits, problem.success)
    return Check(f"{what} trains alike", abs(after - kernel) < min(CLOSE, max(kernel - before, 0) / 2),
                 f"solve rate {before:.3f} -> {after:.3f}, kernel {kernel:.3f}")


def kernel_checks(quick: bool) -> list[Check]:
    """Agreement and draws, for the table policy at every shape and for both heads."""
    from benchmarks.heads import HEADS

    done = []
    for name, shape in SHAPES.items():
        if name != "large" or not quick:
            done.append(agreement(f"table policy, {name}", *regime_of(shape), steps=1 if name == "large" else 3))
        done.append(draws(shape))
    for name, raw in HEADS.items():
        done.append(agreement(f"{name} head", *fade(raw), steps=3))
    return done


def restarts(run: Restarted, steps: int) -> Check:
    """Timed calls repeat the same steps: the second is the first, to the bit."""
    tables = []
    for _ in range(2):
        run.advance(steps)
        tables.append(run.learned())
    return Check("kernel repeats its first steps", bool((tables[0] == tables[1]).all()),
                 f"largest difference {np.abs(tables[0] - tables[1]).max():.1e}")
