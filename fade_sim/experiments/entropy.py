"""Does reinforcing successes collapse entropy, as the sign ratio says? Read at equal solve rate, slope held fixed."""

import numpy as np

from fade_sim.experiments.claim import FAILS, HOLDS, UNDER, Claim, Number, Score
from fade_sim.experiments.numbers import below, beside_prototype, measured, raw, shown

LEVELS = (0.7, 0.8)  # train pass@1 at which rules are compared, besides the end of the run
R2 = 0.8  # share of the differences between rules that "predictable from the sign ratio alone" asks for
SAME = 0.01  # at the end rules count as equally good if their mean solve rates differ by less
CLAIM = Claim(
    "entropy", "Reinforcing successes collapses entropy",
    "The sign of the update sets the entropy: reinforcing successes collapses it, suppressing failures keeps it up, "
    "at a rate that is predictable from the ratio m_S/m_F of the gradient masses alone.",
    "arXiv 2607.01490",
    f"Judged on asym_pure_loo(delta), delta 1/8 to 8: its expected update is the same at every delta, so nothing but "
    f"the sign ratio differs. In a regime it holds at a moment (train pass@1 first at .7, at .8; the end, if mean "
    f"solve rates there differ by less than {SAME}) if the slope of the entropy H against log(m_S/m_F) is below 0 "
    f"(whole 95% interval over seeds, every run counted) and the line explains at least {R2} of the variance of the "
    f"rules' means (R^2). 'holds' needs every regime and moment, 'does not hold here' means none.",
)

FREE = tuple({"name": "asym_pure_loo", "delta": d} for d in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0))
BASELINES = tuple({"name": "baseline", "b": b} for b in (0.0, 0.25, 0.5, 0.75, 1.0))
ASYM = tuple({"name": "asym_delta", "delta": d} for d in (0.25, 0.5, 1.0, 2.0, 4.0))
TABLE, SMALL = {"lr_table": 10.0}, {"group_size": 4}
ADAM = {"optimizer": "adam", "lr": 0.02}
REGIMES = {  # (train, world) over a shared head alone, on-policy, SGD lr 10, G 16
    "head": ({}, {}),
    "head + table": (TABLE, {}),
    "head + table, G 4": ({**TABLE, **SMALL}, {}),
    "Adam + table, G 4": ({**ADAM, **TABLE, **SMALL}, {}),
    "PPO clip, stale 40, lr 40": ({"lr": 40.0, "staleness": 40, "correction": "clip"}, {}),
    "stale 10, lr 20": ({"lr": 20.0, "staleness": 10}, {}),
    "head, lr 60, G 8": ({"lr": 60.0, "group_size": 8}, {}),
    "table alone": ({"lr": 0.0, "lr_table": 20.0}, {}),
    "head + table, noisy rewards": (TABLE, {"false_negative": 0.4, "false_positive": 0.05}),
    "Adam": (ADAM, {}),
    "Adam, lr .1": ({**ADAM, "lr": 0.1}, {}),
    "Adam + table": ({**ADAM, **TABLE}, {}),
    "PPO clip, stale 20, lr 20": ({"lr": 20.0, "staleness": 20, "correction": "clip"}, {}),
    "PPO clip .1, stale 40, lr 40": ({"lr": 40.0, "staleness": 40, "correction": "clip", "clip": 0.1}, {}),
    "PPO clip, 4 epochs, lr 20": ({"lr": 20.0, "epochs": 4, "correction": "clip"}, {}),
    "Adam, PPO clip, stale 20": ({**ADAM, "staleness": 20, "correction": "clip"}, {}),
    "ratio, stale 20, lr 20": ({"lr": 20.0, "staleness": 20, "correction": "ratio"}, {}),
    "stale 5, lr 20": ({"lr": 20.0, "staleness": 5}, {}),
    "stale 30, lr 40": ({"lr": 40.0, "staleness": 30}, {}),
    "Adam, stale 20": ({**ADAM, "staleness": 20}, {}),
}
PROTOTYPE = {  # slopes of asym_pure_loo (12 other worlds): H at .7, H at .8, H_S at .8, H_F at .8, H at the end
    "head": ("+.002+-.002", "+.002+-.002", "+.001+-.001", "+.003+-.002", "+.003+-.002"),
    "head, lr 60, G 8": ("+.013+-.004", "-.001+-.004", "-.003+-.003", "+.006+-.005", "+.001+-.001"),
    "head + table": ("-.002+-.001", "-.004+-.002", "-.0064+-.0016", "+.026+-.003", "-.0074+-.0015"),
    "head + table, G 4": ("-.005+-.004", "-.009+-.004", "-.0183+-.0033", "+.086+-.006", "-.0119+-.0018"),
    "Adam + table, G 4": ("-.023+-.003", "-.021+-.003", "-.0241+-.0027", "+.072+-.003", "-.0146+-.0015"),
    "PPO clip, stale 40, lr 40": ("-.024+-.001", "-.019+-.002", "+.004+-.002", "-.087+-.005", "+.009+-.001"),
    "stale 10, lr 20": ("+.263+-.012", "+.187+-.008", "+.101+-.004", "+.285+-.011", "+.012+-.003"),
}
_ORDER = (("H", "at .7"), ("H", "at .8"), ("H_S", "at .8"), ("H_F", "at .8"), ("H", "at the end"))
METRIC = {"H": "train_entropy", "H_S": "train_entropy_success", "H_F": "train_entropy_failure"}
MOMENTS = (*(f"at {level:g}".replace("0.", ".") for level in LEVELS), "at the end")
_TRAIN = {"steps": 800, "record": 10, "lr": 10.0, "lr_table": 0.0, "group_size": 16}
_STEP = {"labels": ("asym_pure_loo(0.125)", "asym_pure_loo(1)", "asym_pure_loo(8)", "baseline(0)", "baseline(1)"),
         "world": {"train_prompts": 64, "test_prompts": 1}, "head_lr": (1.0, 0.25), "head_seeds": 10,
         "table": {"lr": 0.0, "lr_table": 1.0, "group_size": 4, "prompts": 64}}
SETTINGS = {
    "quick": {"regimes": tuple(REGIMES)[:6], "train": {**_TRAIN, "seeds": 10}, "one_step": {**_STEP, "seeds": 100}},
    "full": {"regimes": tuple(REGIMES), "train": {**_TRAIN, "seeds": 16}, "one_step": {**_STEP, "seeds": 400}},
}
LIMITS = (
    "Every regime is read at three moments, each with its own 95% interval: of those without an effect about one in "
    "forty would show a slope below 0 by chance; the R^2 makes it rarer.",
    "At equal solve rate H still mixes H_S and H_F, which move in opposite directions in several regimes.",
    "asym_delta is matched by mass, not by slope: its differences contain the difficulty axis.",
    "The prediction of second order is for one step of a table from the initial policy, not for a whole run.",
)
DIFFERS = (  # (start of a number's name, why it is not the prototype's); from a run of its own over 64 worlds
    ("Adam + table, G 4", "half of it the sample of worlds: over 64 of them H -.014 at .7 and -.015 at .8, H_S -.020 "
                          "at .8, each with a standard error of .0015"),
    ("PPO clip, stale 40", "half of it the sample of worlds: over 64 of them H -.013 and H_F -.076 at .8, with a "
                           "standard error of .002"),
    ("stale 10", "the sample of worlds: over 64 of them H_S +.097 at .8, with a standard error of .003"),
)


def configs(settings: dict) -> dict:
    """Per regime the slope-free rules in one cell and asym_delta at equal mass in another; the single steps."""
    asked = {}
    for name in settings["regimes"]:
        train, world = REGIMES[name]
        train = {**settings["train"], **train}
        asked[f"entropy: {name}"] = raw(name, FREE + BASELINES, train, world)
        asked[f"entropy: {name}, equal mass"] = raw(name, ASYM, {**train, "match": "mass"}, world)
    from fade_sim.experiments.entropy_theory import one_step_config

    for what, labels, train in _steps(settings["one_step"]):
        asked[what] = one_step_config(what, labels, train, settings["one_step"]["world"])
    return asked


def _steps(step: dict):
    """(what, labels, train) of the single steps."""
    yield "entropy: one step, table", step["labels"], {**step["table"], "seeds": step["seeds"]}
    for lr in step["head_lr"]:
        yield (f"entropy: one step, head, lr {lr:g}", _HEAD,
               {"mode": "expected", "lr": lr, "lr_table": 0.0, "seeds": step["head_seeds"]})


_HEAD = ("asym_delta(0.5)",)


def run(settings: dict, cells) -> dict:
    """{"traces": {regime: (slope-free rules, asym_delta at equal mass)}, "table", "head"}."""
    from fade_sim.experiments import entropy_theory as theory

    step, asked = settings["one_step"], configs(settings)
    traces = {name: tuple(cells.trace(asked[what], what) for what in (f"entropy: {name}",
                                                                      f"entropy: {name}, equal mass"))
              for name in settings["regimes"]}
    (what, labels, train), *heads = _steps(step)
    changes = theory.one_step(what, labels, train, step["world"], cells)
    table = {label: {"measured": changes[label], **theory.expected_table(
        label, train["group_size"], train["lr_table"], step["world"], step["seeds"])} for label in labels}
    head = {}
    for what, labels, train in heads:
        change = theory.one_step(what, labels, train, step["world"], cells)
        head[train["lr"]] = {"measured": change[labels[0]], "first": theory.expected_head(
            labels[0], settings["train"]["group_size"], train["lr"], step["world"], step["head_seeds"])}
    return {"traces": traces, "table": table, "head": head}


def at(trace, metric: str, moment: str) -> np.ndarray:
    """(rules, seeds) of a metric at one of MOMENTS; NaN where a run never reaches the solve rate."""
    from fade_sim.experiments import matched

    i = MOMENTS.index(moment)
    return matched.at_level(trace, metric, LEVELS[i]) if i < len(LEVELS) else trace.last(metric)


def points(trace, labels, metric: str, moment: str) -> tuple[np.ndarray, np.ndarray]:
    """log(m_S/m_F) at the start (rules,) and a metric (rules, seeds), of some of a trace's rules."""
    from fade_sim.experiments import matched

    rows = [trace.labels.index(label) for label in labels]
    return matched.log_sign_ratio(trace)[rows], at(trace, metric, moment)[rows]


def families(traces) -> dict:
    """{family: (trace, labels)}: those with both masses, so that their sign ratio is finite."""
    free, mass = traces
    interior = [label for label in free.labels if label.startswith("baseline") and label not in ENDS]
    return {"asym_pure_loo": (free, [label for label in free.labels if label.startswith("asym_pure_loo")]),
            "baseline": (free, interior), "asym_delta": (mass, list(mass.labels))}


ENDS = ("baseline(0)", "baseline(1)")  # success alone, failure alone


def score(results: dict) -> Score:
    held, numbers, said = [], [], []
    for name, traces in results["traces"].items():
        rows, moments = _free_numbers(name, traces)
        numbers += rows + _other_numbers(name, traces)
        held += [f"{name}: {moment}" for moment in moments]
        said.append(f"{name} {shown(rows[0])}")
    numbers += _step_numbers(results) + _slope_numbers()
    total = len(results["traces"]) * len(MOMENTS)
    verdict = HOLDS if len(held) == total else UNDER if held else FAILS
    because = (f"It holds at {len(held)} of {total} regimes and moments. Slope of H against log(m_S/m_F), "
               f"asym_pure_loo, at solve rate .8: {'; '.join(said)}.")
    return Score(verdict, tuple(held) if verdict == UNDER else (), because, tuple(numbers), LIMITS,
                 beside_prototype(numbers, DIFFERS))


def _free_numbers(name: str, traces) -> tuple[list[Number], list[str]]:
    """Slopes of asym_pure_loo, H at .8 first, and the moments at which the claim holds."""
    from fade_sim.experiments import matched

    trace, labels = families(traces)["asym_pure_loo"]
    proto = dict(zip(_ORDER, PROTOTYPE.get(name, ("",) * len(_ORDER)), strict=True))
    rows, moments = {}, []
    for moment in MOMENTS:
        for part, metric in METRIC.items():
            x, values = points(trace, labels, metric, moment)
            row = matched.slope_number(f"{name}: slope of {part} {moment}", x, values,
                                       prototype=proto.get((part, moment), ""))
            rows[part, moment] = row
            _, p = points(trace, labels, "train_pass@1", moment)
            if (part == "H" and np.isfinite(values).all() and below(row) and matched.slope(x, values).r2 >= R2
                    and np.ptp(p.mean(axis=1)) < SAME):
                moments.append(moment)
    first = rows.pop(("H", "at .8"))
    return [first, *rows.values()], moments


def _other_numbers(name: str, traces) -> list[Number]:
    """What the other families say, and whether the sign ratio alone orders all rules."""
    from fade_sim.experiments import matched

    rows, found = [], families(traces)
    for family in ("baseline", "asym_delta"):
        rows += [matched.slope_number(f"{name}: slope of H {moment}, {family}",
                                      *points(*found[family], "train_entropy", moment)) for moment in MOMENTS]
    for part, metric in METRIC.items():
        for moment in MOMENTS[1:]:
            success, failure = points(traces[0], ENDS, metric, moment)[1]
            both = np.isfinite(success - failure)
            levels = f"levels {success[both].mean():.3f}, {failure[both].mean():.3f}" if both.any() else ""
            rows.append(matched.paired(f"{name}: {part} {moment}, {' - '.join(ENDS)}", success, failure, note=levels))
    return rows + [_pooled(name, found, moment) for moment in MOMENTS]


def _pooled(name: str, found: dict, moment: str) -> Number:
    """R^2 of H on the sign ratio over the rules of all families together."""
    from fade_sim.experiments import matched

    parts = [points(trace, labels, "train_entropy", moment) for trace, labels in found.values()]
    x, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    fit = matched.slope(x, values)
    there = fit.per_seed[np.isfinite(fit.per_seed)]
    slope = f"slope {there.mean():+.4f}" if len(there) else "no seed in which all of them reach it"
    if 0 < len(there) < len(fit.per_seed):
        slope += f"; {len(fit.per_seed) - len(there)} of {len(fit.per_seed)} seeds have no value"
    return Number(f"{name}: R2 of H {moment} over all {len(x)} rules", fit.r2, seeds=len(there), note=slope)


def _step_numbers(results: dict) -> list[Number]:
    """One step of a table, predicted to second order; one step of the head, to first."""
    rows, table = [], results["table"]
    for label, step in table.items():
        both = float((step["first"] + step["second"]).mean())
        rows.append(measured(f"one step: dH of the table, {label}", step["measured"], predicted=both,
                             note=f"second order {step['second'].mean() / both:.0%} of it"))
    names = sorted((label for label in table if label.startswith("asym_pure_loo")), key=lambda s: float(s[14:-1]))
    low, high = table[names[0]], table[names[-1]]
    for a, b, what in ((low, high, f"{names[-1]} - {names[0]}"), (table[ENDS[1]], table[ENDS[0]], " - ".join(ENDS))):
        change = {key: (b[key] - a[key]).mean() for key in ("first", "second", "second_S", "second_F")}
        rows.append(measured(f"one step: dH of the table, {what}", b["measured"] - a["measured"],
                             predicted=float(change["first"] + change["second"]),
                             note=f"first order {change['first']:+.1e}; H_S {change['second_S']:+.4f}, "
                                  f"H_F {change['second_F']:+.4f}"))
    for lr, step in results["head"].items():
        rows.append(measured(f"one step: relative error of the first order, head, lr {lr:g}",
                             np.abs(step["measured"] / step["first"] - 1), note="exact expectation; shrinks with lr"))
    return rows


def _slope_numbers() -> list[Number]:
    """The difficulty axis of the rules: expected step as a multiple of grad p, exact at G 16."""
    from fade_sim.advantage import make
    from fade_sim.theory import slope

    return [Number(f"slope J'(p): {method.label}, p {p:g}", slope(method, p, 16), predicted=predicted)
            for row in (*ASYM[:1], *ASYM[-1:], *FREE[:1], *FREE[-1:]) for p in (0.2, 0.8)
            for method in [make(**row)]
            for predicted in [(15 / 16 if row["name"] == "asym_delta" else 1.0) * _population_slope(row, p)]]


def _population_slope(row: dict, p: float) -> float:
    """q + p/delta of asym_delta; 1 of the slope-free rules."""
    return 1 - p + p / row["delta"] if row["name"] == "asym_delta" else 1.0


def figure(results: dict, path) -> None:
    from fade_sim.experiments.entropy_figure import draw

    draw(results, path)
