"""The picture of the experiment on rank: the collapse, what removes it, and the instability that predicts it."""

import numpy as np

from fade_sim.experiments.rank import COLLAPSE, excess, grid_points
from fade_sim.figures import COLORS, STYLE, _curve, _figure, rule_style, save
from fade_sim.report import interval

SHOWN = ("asym_delta(0.3)", "asym_delta(0.5)", "dr_grpo", "power(2)", "asym_delta(2)")


def draw(results: dict, path) -> None:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(2, 2, (9.6, 8.4))
        _over_time(axes[0, 0], results["traces"])
        _removed(axes[0, 1], results["traces"])
        _by_lambda(axes[1, 0], results)
        _growth(axes[1, 1], results["theory"])
        save(figure, path)


def _over_time(ax, traces: dict) -> None:
    name, trace = next(iter(traces.items()))
    for label in SHOWN:
        values = trace.values["rank1"][trace.labels.index(label)]
        _curve(ax, trace.steps[1:], values[:, 1:], 0.0, rule_style(label, SHOWN))
        ax.plot([], [], lw=2, label=label, **rule_style(label, SHOWN))
    ax.set(xlabel="steps", ylabel="rank-1 energy of the update", ylim=(0, 1.02))
    ax.set_title(f"Rank-1 energy while training ({name})")
    ax.legend(fontsize=8, loc="lower left", ncols=2)


def _removed(ax, traces: dict) -> None:
    rules = ("asym_delta(0.3)", "power(2)", "asym_delta(2)")
    for row, (label, marker) in enumerate(zip(rules, "oDs", strict=True)):
        mean, half = interval([excess(trace, label) for trace in traces.values()])
        y = np.arange(len(traces)) + 0.22 * (row - 1)
        ax.errorbar(mean, y, xerr=half, fmt=marker, ms=4, lw=1.3, label=label, color=rule_style(label, SHOWN)["color"])
    ax.axvline(0, color="#444444", lw=0.8)
    ax.axvline(COLLAPSE, color="#444444", lw=0.8, ls=":")
    ax.set_yticks(range(len(traces)), list(traces), fontsize=8)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="final rank-1 energy above dr_grpo's")
    ax.set_title("Which switch removes it? Right of the\ndotted line: a collapse")
    ax.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, -0.13), ncols=3, handletextpad=0.2, columnspacing=0.8)


def _by_lambda(ax, results: dict) -> None:
    points = grid_points(results)
    for delta, color in zip(sorted(set(points[:, 2])), (COLORS[1], COLORS[2], COLORS[3]), strict=False):
        own = points[points[:, 2] == delta]
        ax.plot(own[:, 0], own[:, 1], "o", ms=5, color=color, label=f"asym_delta({delta:g})")
    ax.axvline(1, color="#444444", lw=1, ls="--")
    ax.text(1, ax.get_ylim()[1] * 0.96, " unstable ", ha="left", va="top", fontsize=8)
    ax.text(1, ax.get_ylim()[1] * 0.96, " stable ", ha="right", va="top", fontsize=8)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="Λ = lr · staleness · λmax at the start", ylabel="final rank-1 energy above dr_grpo's")
    ax.set_title("Sampled training against Λ\n(a dot per lr, staleness and delta)")
    ax.legend(fontsize=8, loc="center left")


def _growth(ax, theory: dict) -> None:
    """Measured growth as dots on the predicted curve."""
    from fade_sim.theory.stability import growth_factor

    fine = np.geomspace(min(theory["Lambda"]) * 0.9, max(theory["Lambda"]) * 1.1, 100)
    for i, lag in enumerate(theory["lags"]):
        color = (COLORS[3], COLORS[1], COLORS[4], COLORS[5])[i % 4]
        ax.plot(fine, np.log(growth_factor(fine / lag, lag)), lw=1.5, color=color)
        ax.plot(theory["Lambda"], theory["measured"][i].mean(axis=1), "o", ms=5, color=color,
                label=f"rollouts {lag} updates old")
    ax.axhline(0, color="#444444", lw=0.8)
    ax.axvline(1, color="#444444", lw=1, ls="--")
    ax.set(xlabel="Λ", ylabel="growth of a perturbation, ln z per step")
    ax.set_title("Predicted growth (lines) and measured (dots)")
    ax.legend(fontsize=8)
