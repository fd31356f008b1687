"""Simulate: every contender, every seed, one regime -> Trace.

Replicas (contender x seed) run on threads, each wholly on one thread with its own arrays and its
own stream of random numbers, so results do not depend on the number of threads. Contenders of one
seed share the world and the uniforms: differences between rules are paired.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module

import numpy as np
from threadpoolctl import threadpool_limits

from fade_sim.advantage import BatchStats, controller, make, resolve, rules, weight_table
from fade_sim.advantage.controller import ABLATIONS, SCALE_RATE
from fade_sim.diagnostics import spectrum
from fade_sim.errors import InputError
from fade_sim.sim import expected, kernels, layout
from fade_sim.sim.draws import LANES
from fade_sim.sim.measure import METRICS, measure
from fade_sim.sim.world import WorldArrays, as_float32, make_world

_CONTROL = {"none": layout.FULL, "batch": layout.BATCH, "ema": layout.EMA, "unit": layout.UNIT}
SPECTRUM = ("rank1", "stable_rank", "effective_rank", "M1_share")


@dataclass(frozen=True)
class Trace:
    """What was recorded: `values[name]` has shape (contenders, seeds, records).

    Names: measure.METRICS and SPECTRUM (of the head's cumulative update; NaN while it is zero).
    alpha and delta are NaN for rules without a controller.
    """

    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: np.ndarray  # (records,) steps taken before each record
    values: dict[str, np.ndarray]

    def last(self, name: str) -> np.ndarray:
        """(contenders, seeds) at the end of training."""
        return self.values[name][:, :, -1]


def simulate(regime, contenders, *, threads: int | None = None, solve_rates=None,
             progress: Callable[[int], None] = lambda steps: None, worlds: dict | None = None) -> Trace:
    """Run a `config.Regime`. progress is called with the number of steps just finished.

    solve_rates: initial solve rates of real prompts, see `make_world`. threads: default all cores. worlds: one dict
    for the calls of several regimes, which keeps the worlds of the last for the next; same solve_rates in all.
    """
    require_memory(regime, len(contenders), solve_rates)
    train = regime.train
    seeds = tuple(range(train.seed, train.seed + train.seeds))
    steps = record_steps(train.steps, train.record)
    shape = len(contenders), len(seeds), len(steps)
    metrics = np.full((*shape, len(METRICS)), np.nan)
    worlds = _worlds(regime.world, seeds, solve_rates, {} if worlds is None else worlds)
    if train.precision == "float32":
        worlds = [as_float32(world) for world in worlds]
    if regime.world.policy == "linear":
        import_module("scipy.linalg.cython_blas")  # what the kernels' products call: loaded now, so that it is limited
    heads = np.empty((*shape, *head_shape(worlds[0])))

    def replica(job: tuple[int, int], world: WorldArrays) -> None:
        i, j = job
        run = _Replica(train, contenders[i], world, seeds[j])
        for r, step in enumerate(steps):
            run.advance(int(step), progress)
            measure(world, run.state, run.log_binomial, train.prompts, run.batch, metrics[i, j, r])
            heads[i, j, r] = run.state.head

    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise InputError(f"threads is {threads!r}, expected an integer of at least 1")
    workers = threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(replica, (i, j), worlds[j]) for j in range(len(seeds)) for i in range(len(contenders))]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _require_finite(metrics, heads, regime, contenders, seeds, steps)
    values = {name: metrics[..., m] for m, name in enumerate(METRICS)}
    with threadpool_limits(1, "blas"):
        values.update(zip(SPECTRUM, _spectra(heads), strict=True))
    return Trace(tuple(c.label for c in contenders), seeds, steps, values)


def _worlds(spec, seeds, solve_rates, kept: dict) -> list[WorldArrays]:
    """The world of each seed, taken from `kept` where it has it; kept then holds these and no others."""
    made = {(spec, seed): kept.get((spec, seed)) or make_world(spec, seed, solve_rates) for seed in seeds}
    kept.clear()
    kept.update(made)
    return list(made.values())


def log_binomial(n: int) -> np.ndarray:
    """log C(n, c) for c = 0 .. n."""
    if n <= 1000:
        return np.array([math.log(math.comb(n, c)) for c in range(n + 1)])
    return np.array([math.lgamma(n + 1) - math.lgamma(c + 1) - math.lgamma(n - c + 1) for c in range(n + 1)])


def require_memory(regime, contenders: int, solve_rates=None) -> None:
    """Refuse a run that cannot fit, before anything is allocated (InputError)."""
    world, train = regime.world, regime.train
    prompts = world.train_prompts + world.test_prompts if solve_rates is None else len(solve_rates)
    arm = (2 * (world.hidden + world.token) + 8) * 8.0
    head = 8.0 * world.hidden * (world.arms if world.policy == "linear" else world.token)
    records = contenders * train.seeds * (train.steps // train.record + 2) * (8.0 * len(METRICS) + head)
    replicas = (os.cpu_count() or 1) * (
        head * (train.staleness + 4) + 8.0 * world.arms * (prompts + 4 * train.prompts) + 16.0 * train.group_size)
    needed = train.seeds * prompts * world.arms * arm + 2 * records + replicas
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return
    if needed > 0.9 * there:
        raise InputError(
            f"regime {regime.name!r} needs about {needed / 2**30:.0f} GiB (worlds of all seeds, records, state), "
            f"this machine has {there / 2**30:.0f}: take fewer seeds, prompts, arms or records "
            f"(train.record is {train.record})")


def record_steps(steps: int, every: int) -> np.ndarray:
    """0, every, 2 every, ... and always the last step."""
    return np.unique(np.append(np.arange(0, steps, every), steps))


class _Replica:
    """One contender on one world: its state, and how to move it forward."""

    def __init__(self, train, contender, world: WorldArrays, seed: int):
        self.train, self.world, self.method = train, world, contender.method
        self.ctrl = contender.controller
        G = train.group_size
        self.log_binomial = log_binomial(G - 1)
        self.dyn = dynamics(train, seed)
        first = self.method
        if self.method.rule.adaptive:
            gains = first_gains(self.ctrl)
            first = make("dr_grpo") if self.method.rule.control in ("batch", "ema") else resolve(self.method, *gains)
        wanted = first.rule.reads_batch or train.match in ("mass", "grad")
        start = initial_batch(world, G) if wanted else None  # as dear as a hundred steps
        self.factor = match_factor(train, first, world, self.dyn, start)
        self.state = new_state(world, self.dyn)
        self.state.table[:] = self.factor * weight_table(first, G, batch=start)
        if self.method.rule.adaptive:
            self.state.running[[layout.ALPHA, layout.DELTA]] = gains
        self.weights = weights(self.method, self.ctrl, self.state.table, self.factor, train)
        self.batch = new_batch(world, self.dyn)
        self.step = 0

    def advance(self, to: int, progress) -> None:
        """Take steps until `to` of them are done."""
        while self.step < to:
            until = min(to, self.step + 200)  # short calls keep Ctrl-C and the progress bar alive
            if self.train.mode != "expected":
                self._sampled(until)
            else:
                for step in range(self.step, until):
                    self.ctrl = expected.train_step(
                        self.world, self.dyn, self.method, self.ctrl, self.factor, self.state, step)
                self._copy_controller()
            progress(until - self.step)
            self.step = until

    def _sampled(self, until: int) -> None:
        args = self.world, self.dyn, self.weights, self.state, self.log_binomial
        if not self.method.rule.reads_batch:
            kernels.train(*args, self.step, until, self.batch, layout.WHOLE)
            return
        G = self.train.group_size
        sizes = np.full(self.train.prompts, G)
        for step in range(self.step, until):  # the table comes from the core, batch by batch
            kernels.train(*args, step, step + 1, self.batch, layout.DRAW)
            table = weight_table(self.method, G, batch=BatchStats(self.batch.successes, sizes))
            self.state.table[:] = self.factor * table
            kernels.train(*args, step, step + 1, self.batch, layout.LEARN)

    def _copy_controller(self) -> None:
        """Expected mode keeps its controller as a value; show it where the recorder looks."""
        running, ctrl = self.state.running, self.ctrl
        running[layout.PHAT], running[layout.HHAT] = ctrl.phat, ctrl.hhat
        if self.method.rule.adaptive:
            running[[layout.ALPHA, layout.DELTA]] = controller.gains(ctrl)


def dynamics(train, seed: int) -> layout.Dynamics:
    """`config.Train` in the types of the kernels."""
    key = np.random.SeedSequence([seed, 0x44594E]).generate_state(1, np.uint64)[0]
    correction = {"none": layout.NONE, "ratio": layout.RATIO, "clip": layout.CLIP}[train.correction]
    return layout.Dynamics(
        key, train.prompts, train.group_size, train.lr, train.lr_table, train.optimizer == "adam", train.staleness,
        correction, train.clip, train.epochs, train.match == "slope", train.mode == "count", train.dynamic_sampling,
        train.max_rounds, train.lr != 0, train.staleness == 0 and train.epochs == 1,
    )


def head_shape(world: WorldArrays) -> tuple[int, int]:
    """(V, d), or (d, K) of a linear policy."""
    d = world.hidden.shape[2]
    return (d, world.bias.shape[1]) if world.linear else (world.token.shape[2], d)


def new_state(world: WorldArrays, dyn: layout.Dynamics) -> layout.State:
    """The state before the first step: zero head, own logits at the bias, nothing averaged yet."""
    shape, dtype = head_shape(world), world.bias.dtype
    running = np.zeros(10)
    running[[layout.PHAT, layout.PHAT_KEPT]] = 0.5
    running[[layout.HHAT, layout.H0, layout.SCALE, layout.ALPHA, layout.DELTA]] = np.nan
    moments = [np.zeros(shape, dtype) if dyn.adam else None for _ in range(2)]
    return layout.State(np.zeros(shape, dtype), np.zeros((dyn.lag + 1, *shape), dtype),
                        world.bias[:world.n_train].copy(), *moments, running, np.zeros((dyn.group_size + 1, 2)))


def new_batch(world: WorldArrays, dyn: layout.Dynamics) -> layout.Batch:
    """Scratch arrays of a step."""
    B, G, K, dtype = dyn.prompts, dyn.group_size, world.bias.shape[1], world.bias.dtype
    arm = np.uint16 if K <= 65536 else np.uint32
    whole = -(-G // LANES) * LANES
    rollouts = (None, None) if dyn.count else (np.zeros((B, whole), arm), np.zeros((B, G), np.bool_))
    counts = tuple(np.zeros((B, K), dtype) if dyn.count else None for _ in range(2))
    mu = np.zeros((B, K), dtype)
    return layout.Batch(
        np.zeros(B, np.int64), np.zeros(B, np.int64), mu, *rollouts, *counts,
        mu if dyn.in_place else np.zeros((B, K), dtype), np.zeros((1, K), dtype), np.zeros((1, G)),
        np.zeros((2, K), dtype), np.zeros(world.n_modes + 4),
        np.zeros((world.token.shape[2], K), dtype),
        np.zeros((B, world.hidden.shape[2]), dtype) if world.linear else None, np.zeros(head_shape(world), dtype))


def weights(method, ctrl: controller.State, table, factor: float, train) -> layout.Weights:
    """How the kernels make each step's table for this method."""
    rule = method.rule
    kind = _CONTROL[rule.control] if rule.adaptive else layout.STATIC
    base = weight_table(make("dr_grpo"), train.group_size) if rule.adaptive else table.copy()
    return layout.Weights(
        kind, base, factor, 1.0 - ctrl.rate if ctrl.ema_literal else ctrl.rate, SCALE_RATE, ctrl.alpha_max,
        ctrl.delta_min, math.nan if ctrl.h_star is None else ctrl.h_star, ctrl.relative,
        ABLATIONS.index(ctrl.ablation), float(ctrl.horizon),
        rules.NORMALIZE.index(method.params.get("normalize", "none")),
    )


def first_gains(ctrl: controller.State) -> tuple[float, float]:
    """(alpha, delta) before the first batch: entropy is still at its start, so delta is 1."""
    start = ctrl if ctrl.h0 is not None else replace(ctrl, h0=1.0, hhat=1.0)
    return controller.gains(start)[0], 1.0


def initial_batch(world: WorldArrays, group_size: int) -> BatchStats:
    """One expected group per training prompt (successes rounded): what rules of the batch read at the start."""
    rate = expected.initial_policy(world)[2]
    return BatchStats(np.rint(group_size * rate), np.full(len(rate), group_size))


def match_factor(train, method, world: WorldArrays, dyn: layout.Dynamics, start: BatchStats) -> float:
    """Constant on all weights that makes the rule equal to dr_grpo at the start (match = mass or grad)."""
    if train.match not in ("mass", "grad"):
        return 1.0
    size = []
    for one in (make("dr_grpo"), method):
        table = weight_table(one, train.group_size, batch=start)
        if train.match == "grad":
            size.append(float(np.linalg.norm(expected.expected_gradient(world, table, dyn))))
        else:
            size.append(expected.total_mass(expected.initial_policy(world)[2], table))
    if size[1] == 0.0:
        raise InputError(f"train.match = {train.match}: {method.label} has no {train.match} at the start to match")
    return size[0] / size[1]


def _spectra(heads) -> tuple[np.ndarray, ...]:
    """Rank-1 energy, stable rank, effective rank of each head, and its share on the common direction u1."""
    rank1, stable, effective = spectrum(heads)
    energy = (heads**2).sum(axis=(-2, -1))
    on_u1 = (heads[..., 0] ** 2).sum(axis=-1)
    share = np.divide(on_u1, energy, out=np.full_like(energy, np.nan), where=energy > 0)
    return rank1, stable, effective, share


def _require_finite(metrics, heads, regime, contenders, seeds, steps) -> None:
    """A run that overflowed is an error, never a curve with holes."""
    in_range = (np.abs(heads) < 1e150).all(axis=(-2, -1))  # squares must be finite too; False for NaN
    bad = ~in_range | ~np.isfinite(metrics[..., :16]).all(axis=-1)
    if bad.any():
        i, j, r = (int(v) for v in np.argwhere(bad)[0])
        raise InputError(
            f"regime {regime.name!r}: {contenders[i].label} with seed {seeds[j]} became non-finite by step "
            f"{steps[r]}: lower train.lr ({regime.train.lr:g}) or lr_table ({regime.train.lr_table:g})"
        )
