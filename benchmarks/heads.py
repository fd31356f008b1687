"""Steps that train a shared head, against the matrix products (and exps) that they cannot do without."""

import numpy as np

from benchmarks import units
from benchmarks.problem import Restarted, fade
from benchmarks.timing import Row, Timing, interleave, ratios, said
from fade_sim import config
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


def float32_train() -> dict | None:
    """Settings that run the kernels in float32; None where there are none."""
    return {"dtype": "float32"} if "dtype" in config.Train.__struct_fields__ else None


def section(options) -> list[Row]:
    """Linear head against its GEMMs, bilinear head against its GEMMs and exps."""
    rows = []
    narrow = float32_train()
    for name, dtype, train in (("linear", np.float32, narrow), ("linear", np.float64, {}),
                               ("bilinear", np.float64, {})):
        if train is None:
            options.say("linear head in float32: the kernels have no float32 mode, so its goal is not measured")
            continue
        raw = HEADS[name]
        regime, contender = fade({**raw, "train": {**raw["train"], **train}})
        run = Restarted(regime, contender, make_world(regime.world, 0))
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
        goal = {"linear": (1.15, 1.25), "bilinear": (2.0, 3.0)}[name] if train or name == "bilinear" else (None, None)
        what = {"linear": "linear head, 1024 prompts x 128 arms, d 256, G 16 / its two GEMMs",
                "bilinear": "bilinear head, default world (B 16, K 32, d = V = 16, G 16) / its GEMMs and exps"}[name]
        bits = "f32" if dtype is np.float32 else "f64"
        rows.append(Row("heads", f"{what}, {bits}", ratios(step, parts), *goal,
                        note=f"{said(step)} a step; parts {said(parts)}"))
    return rows
