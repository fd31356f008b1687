"""From traces to numbers with intervals: summaries, paired differences, rows of metrics. No drawing."""

import numpy as np

TABLE = (  # what the terminal shows, and its heading
    ("rank1", "rank-1"), ("train_entropy", "entropy"), ("train_pass@1", "train p@1"),
    ("test_pass@1", "held-out p@1"), ("test_pass@100", "held-out p@100"),
)


LEGEND = ("rank-1: share of the largest singular value in the energy of the head's cumulative update; entropy: nats; "
          "p@k: exact pass@k; \u00b1: half of the 95% interval over seeds, in the lower rows of the paired difference")


def interval(values, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """(mean, half-width) over the last axis (seeds): Student t; half-width NaN for a single seed."""
    from scipy.special import stdtrit  # scipy.stats would cost a second

    values = np.asarray(values, dtype=np.float64)
    n = values.shape[-1]
    mean = values.mean(axis=-1)
    if n < 2:
        return mean, np.full_like(mean, np.nan)
    error = values.std(axis=-1, ddof=1) / np.sqrt(n)
    return mean, stdtrit(n - 1, (1 + level) / 2) * error


def summarise(trace) -> dict:
    """End of training, per rule: mean, half-width of the 95% interval over seeds, and the paired
    difference to the first rule (same worlds, same uniforms)."""
    out = {}
    for i, label in enumerate(trace.labels):
        row = {}
        for name in trace.values:
            last = trace.last(name)
            mean, half = interval(last[i])
            row[name] = {"mean": mean, "half_width": half}
            if i:
                mean, half = interval(last[i] - last[0])
                row[name] |= {"minus_first": mean, "minus_first_half_width": half}
        out[label] = row
    return {"seeds": len(trace.seeds), "steps": int(trace.steps[-1]), "rules": out}


def metric_rows(regime_name: str, trace):
    """One dict per rule and record: means over the seeds."""
    for i, label in enumerate(trace.labels):
        for r, step in enumerate(trace.steps):
            values = {name: array[i, :, r].mean() for name, array in trace.values.items()}
            yield {"regime": regime_name, "rule": label, "step": int(step), "seeds": len(trace.seeds), **values}


def arrays(traces: dict) -> dict[str, np.ndarray]:
    """Everything recorded, as `REGIME/NAME` -> (rules, seeds, records), with its axes."""
    out = {}
    for regime, trace in traces.items():
        out[f"{regime}/labels"] = np.array(trace.labels)
        out[f"{regime}/seeds"] = np.array(trace.seeds)
        out[f"{regime}/steps"] = trace.steps
        out.update({f"{regime}/{name}": array for name, array in trace.values.items()})
    return out


def print_table(console, title: str, summary: dict) -> None:
    """The end of training, a rule a line, mean and half-width of the 95% interval."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("rule", no_wrap=True)
    for _, heading in TABLE:
        table.add_column(heading, justify="right")
    for label, row in summary["rules"].items():
        table.add_row(label, *(_cell(row[name]) for name, _ in TABLE))
    first = next(iter(summary["rules"]))
    if len(summary["rules"]) > 1:
        table.add_section()
        for label, row in summary["rules"].items():
            if label != first:
                table.add_row(f"{label} - {first}", *(_cell(row[name], "minus_first") for name, _ in TABLE))
    console.print()
    console.print(table)


def _cell(entry: dict, key: str = "mean") -> str:
    value, half = entry[key], entry["half_width" if key == "mean" else f"{key}_half_width"]
    if np.isnan(value):
        return "-"
    shown = f"{value:.3f}" if key == "mean" else f"{value:+.3f}"
    return shown if np.isnan(half) else f"{shown} ±{half:.3f}".replace("±0.", "±.")
