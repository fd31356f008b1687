"""What the traces of one FADE regime say: the tuned rate of each rule, paired differences, ablations."""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from fade_sim.experiments.claim import Number
from fade_sim.experiments.numbers import above, measured

ENDS = ("test_pass@1", "test_pass@10", "test_pass@100")
SHARE = 0.98  # of a peak that counts as reaching it


class Regime:
    """One world and dynamics under all rules and learning rates: {lr: Trace}."""

    def __init__(self, name: str, traces: dict):
        self.name, self.traces = name, traces
        self.rates = sorted(traces)
        self.labels = traces[self.rates[0]].labels
        self.steps = traces[self.rates[0]].steps

    @cached_property
    def means(self) -> np.ndarray:
        """(rates, rules) held-out pass@1, mean over the run and the seeds: what a rate is chosen by."""
        return np.array([self.traces[lr].values["test_pass@1"].mean(axis=(1, 2)) for lr in self.rates])

    def best_rate(self, label: str) -> float:
        return self.rates[int(self.means[:, self.labels.index(label)].argmax())]

    def at_edge(self, label: str) -> bool:
        """Is the best rate the smallest or the largest of the grid?"""
        return self.best_rate(label) in (self.rates[0], self.rates[-1])

    def values(self, label: str, metric: str, rate: float | None = None) -> np.ndarray:
        """(seeds, records) at the rule's best rate, or at a given one."""
        trace = self.traces[self.best_rate(label) if rate is None else rate]
        return trace.values[metric][self.labels.index(label)]

    def mean(self, label: str) -> np.ndarray:
        """(seeds,) held-out pass@1, mean over the run."""
        return self.values(label, "test_pass@1").mean(axis=1)

    def last(self, label: str, metric: str, rate: float | None = None) -> np.ndarray:
        return self.values(label, metric, rate)[:, -1]

    def peak(self, label: str) -> float:
        """Highest point of the mean curve of held-out pass@1."""
        return float(self.values(label, "test_pass@1").mean(axis=0).max())

    def reaches(self, label: str, level) -> np.ndarray:
        """(seeds,) steps until held-out pass@1 is at a level (seeds,); one record past the end if never."""
        there = self.values(label, "test_pass@1") >= np.asarray(level)[:, None]
        never = 2 * self.steps[-1] - self.steps[-2]
        return np.where(there.any(axis=1), self.steps[there.argmax(axis=1)], never)


class Rows(NamedTuple):
    all: list[Number]
    earlier: Number  # steps of the best static rule minus FADE's
    on_front: bool
    schedule: Number  # FADE minus scale_ema, mean held-out pass@1
    best: str  # the best static rule


def regime_numbers(regime: Regime, statics: int) -> Rows:
    """FADE against the static rules (the first `statics` labels) and against its scale controls."""
    names = regime.labels[:statics]
    best = max(names, key=regime.peak)
    level = SHARE * regime.values(best, "test_pass@1").max(axis=1)
    steps = {label: regime.reaches(label, level) for label in regime.labels}
    head = regime.name
    earlier = measured(f"{head}: steps to {SHARE:.0%} of the best static peak, {best} - fade",
                       steps[best] - steps["fade"], prototype=_said(head, "earlier"),
                       note="a run that never gets there counts as one record past its end")
    rows = [earlier,
            measured(f"{head}: the same, {best} - scale_ema", steps[best] - steps["scale_ema"],
                     prototype=_said(head, "earlier of scale_ema"))]
    gaps = {label: [measured(f"{head}: {metric.removeprefix('test_')} at the end, fade - {label}",
                             regime.last("fade", metric) - regime.last(label, metric)) for metric in ENDS]
            for label in names}
    on_front = all(any(above(number) for number in row) for row in gaps.values())
    for k, metric in enumerate(ENDS):
        top = max(names, key=lambda label, metric=metric: regime.last(label, metric).mean())
        rows.append(gaps[top][k])
        rows.append(measured(f"{head}: {metric.removeprefix('test_')} at the end, fade", regime.last("fade", metric)))
    first = max(names, key=lambda label: regime.mean(label).mean())
    schedule = measured(f"{head}: mean pass@1 over the run, fade - scale_ema",
                        regime.mean("fade") - regime.mean("scale_ema"), prototype=_said(head, "schedule"))
    rows += [measured(f"{head}: mean pass@1 over the run, fade - {first}", regime.mean("fade") - regime.mean(first),
                      prototype=_said(head, "mean")), schedule]
    rows += [measured(f"{head}: {metric.removeprefix('test_')} at the end, fade - scale_ema",
                      regime.last("fade", metric) - regime.last("scale_ema", metric)) for metric in (ENDS[0], ENDS[2])]
    rows.append(measured(f"{head}: mean pass@1 over the run, fade_unit - dr_grpo",
                         regime.mean("fade_unit") - regime.mean("dr_grpo"), note="the schedule without its scale"))
    for metric, what in (("test_entropy_success", "H_S (nats), held out"), ("test_modes", "distinct success modes")):
        rows.append(measured(f"{head}: {what}, fade - {best}", regime.last("fade", metric) - regime.last(best, metric)))
    if len(regime.rates) > 1:
        edge = [label for label in regime.labels if regime.at_edge(label)]
        rows.append(Number(f"{head}: rules whose best learning rate is at an edge of the grid", len(edge),
                           note=", ".join(edge) or "none: every best rate is inside"))
    return Rows(rows, earlier, on_front, schedule, best)


_PROTOTYPE = {
    "split_rare, Adam, lr 0.04 for all": {
        "earlier": "225 (1175 against 950)", "earlier of scale_ema": "325 (1175 against 850)",
        "mean": "+.0189+-.0021", "schedule": "-.0008"},
    "split_rare, Adam": {"mean": "+.0033+-.0037 (over GRPO, lr .16)",
                         "schedule": "-.0024+-.0018 (14 regimes, rates up to .04)"}}


def _said(regime: str, key: str) -> str:
    return _PROTOTYPE.get(regime, {}).get(key, "")


def ablation_numbers(regime: Regime) -> list[Number]:
    """What each schedule is for. The first two at FADE's own rate, the last two at each rule's best."""
    head, rate = regime.name, regime.best_rate("fade")

    def gap(label, metric):
        return regime.last(label, metric, rate) - regime.last("fade", metric, rate)

    rows = [measured(f"{head}: {what}, {label} - fade, both at lr {rate:g}", gap(label, metric), note=note)
            for label, metric, what, note in (
                ("fade[no_delta]", "train_entropy", "entropy (nats)", "claimed: collapses, so negative"),
                ("fade[no_delta]", "train_entropy_success", "H_S (nats)", ""),
                ("fade[no_alpha]", "test_modes", "distinct success modes", "claimed: falls, so negative"),
                ("fade[no_alpha]", "test_entropy_success", "H_S (nats), held out", "claimed: falls, so negative"),
                ("fade[no_alpha]", "test_pass@100", "pass@100", "claimed: falls, so negative"))]
    rows += [measured(f"{head}: mean pass@1 over the run, {label} - fade", regime.mean(label) - regime.mean("fade"),
                      note=note)
             for label, note in (("fade[entropy_only]", "claimed: worse, so negative"),
                                 ("fade[log_schedule]", "claimed: worse, so negative"),
                                 ("fade[no_alpha]", ""), ("fade[no_delta]", ""),
                                 ("fade[h_star=2.0]", "a higher target entropy: delta falls sooner"))]
    alpha, phat = (regime.values("fade", name) for name in ("alpha", "phat"))
    rows.append(measured(f"{head}: alpha at step {regime.steps[1]}", alpha[:, 1],
                         note=f"'alpha is high early' needs phat below 1/3; phat there {phat[:, 1].mean():.2f}, "
                              "and the start of .5 gives 1.5"))
    rows.append(measured(f"{head}: largest alpha of the run", alpha[:, 1:].max(axis=1)))
    return rows


def oddity_numbers(case: str, trace) -> list[Number]:
    """Held-out pass@1 and rank-1 energy at the end of each rule."""
    note = {"ratio, lr 40": "a failure moves by lr/delta, up to 133; scale_ema has the same total mass",
            "ratio, lr 120": "dr_grpo with steps as long as those failures",
            "clip, lr 40": "asym_delta(0.3), at its last delta from the start, still falls in some seeds"}.get(case, "")
    rows = []
    for i, label in enumerate(trace.labels):
        rows.append(measured(f"stale 30, {case}: held-out pass@1 at the end, {label}", trace.last("test_pass@1")[i],
                             note=note if label in ("fade", "dr_grpo") else ""))
    return rows
