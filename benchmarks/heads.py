"""Steps that train a shared head, against the matrix products (and exps) that they cannot do without."""

import numpy as np

from benchmarks import units
from benchmarks.checks import Check
from benchmarks.problem import Restarted, fade
from benchmarks.timing import Row, Timing, interleave, ratios, said
from fade_sim.sim import make_world

STEPS = {"linear": 4, "bilinear": 100}
HEADS = {
    "linear": {  # 1024 prompts x 128 arms, d 256: the head is the model
        "method": {"name": "fade"},
        "train": {"prompts": 1024, "group_size": 16, "lr": 10.0, "lr_table": 0.0},
        "world": {"policy": "linear", "train_prompts": 1024, "test_prompts": 1, "arms": 128, "hidden": 256},
    },
    "bilinear": {"method": {"name": "fade"}, "train": {"prompts": 16, "group_size": 16, "lr": 10.0}},  # the main job's
}


def products(name: str, dtype) -> tuple:
    """The two products of a step: logits from the head, the head's gradient. ((A, B), ...) and their results."""
    rng = np.random.default_rng(0)
    P, K, d = (1024, 128, 256) if name == "linear" else (16, 32, 16)
    if name == "linear":  # H W and H^T coef
        sizes = ((P, d), (d, K)), ((d, P), (P, K))
    else:  # W h for all arms of all prompts, and sum_a coef_a v_a h_a^T; d = V
        sizes = ((d, d), (d, P * K)), ((d, P * K), (P * K, d))
    pairs = tuple(tuple(rng.random(size).astype(dtype) for size in pair) for pair in sizes)
    return pairs, tuple(np.empty((a.shape[0], b.shape[1]), dtype) for a, b in pairs)


def run_of(name: str, dtype) -> Restarted | None:
    """The replica that is timed; None where the kernels do not keep a world of this dtype."""
    regime, contender = fade(HEADS[name])
    world = make_world(regime.world, 0)
    if dtype != np.float64:
        world = world._replace(**{field: a.astype(dtype) for field, a in world._asdict().items()
                                  if getattr(a, "dtype", None) == np.float64})
    run = Restarted(regime, contender, world)
    return run if run.replica.state.head.dtype == dtype else None


def narrow_check(run: Restarted) -> Check:
    """The float32 head after one step is the float64 one: a flipped draw or two moves it by less than 1 %."""
    wide = run_of("linear", np.float64)
    for one in (run, wide):
        one.advance(1)
    difference = np.linalg.norm(run.replica.state.head - wide.replica.state.head)
    share = float(difference / np.linalg.norm(wide.replica.state.head))
    return Check("linear head, float32 = float64, 1 step", 0 <= share < 0.01, f"relative difference {share:.1e}")


def section(options) -> list[Row]:
    """Linear head against its GEMMs, bilinear head against its GEMMs and exps."""
    rows = []
    for name, dtype, *goal in (("linear", np.float32, 1.15, 1.25), ("linear", np.float64),
                               ("bilinear", np.float64, 2.0, 3.0)):
        run = run_of(name, dtype)
        if run is None:
            options.say("linear head in float32: the kernels keep float64, so its goal is not measured")
            continue
        if dtype != np.float64:
            options.require(narrow_check(run))
        pairs, out = products(name, dtype)
        calls = 2 if name == "linear" else 100
        x, e = -np.random.default_rng(0).random(16 * 32 if name == "bilinear" else 0), np.empty(16 * 32)
        cells = {
            "step": lambda run=run, name=name: run.advance(STEPS[name]),
            "parts": lambda pairs=pairs, out=out, calls=calls: units.products(pairs, out, calls),
            "exp": lambda x=x, e=e: units.exps(x, e, units.CALLS),
        }
        timings = interleave(cells, options.rounds, options.seconds)
        step = Timing(*([t / STEPS[name] for t in column] for column in timings["step"]))
        parts = Timing(*([a / calls + b / units.CALLS for a, b in zip(*columns, strict=True)]
                         for columns in zip(timings["parts"], timings["exp"], strict=True)))
        what = {"linear": "linear head, 1024 prompts x 128 arms, d 256, G 16 / its two GEMMs",
                "bilinear": "bilinear head, default world (B 16, K 32, d = V = 16, G 16) / its GEMMs and exps"}[name]
        bits = "f32" if dtype is np.float32 else "f64"
        rows.append(Row("heads", f"{what}, {bits}", ratios(step, parts), *goal,
                        note=f"{said(step)} a step; parts {said(parts)}"))
    return rows
