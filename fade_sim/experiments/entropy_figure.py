"""The picture of the experiment on entropy: slopes by regime, successes against failures, levels, one step."""

import numpy as np

from fade_sim.experiments.entropy import METRIC, MOMENTS, families, points
from fade_sim.experiments.matched import slope
from fade_sim.figures import COLORS, STYLE, _figure, save
from fade_sim.report import interval

FAMILY = {"asym_pure_loo": (COLORS[3], "o"), "baseline": (COLORS[1], "s"), "asym_delta": (COLORS[2], "D")}


def draw(results: dict, path) -> None:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(2, 2, (10.6, 6.4 + 0.16 * len(results["traces"])))
        _slopes(axes[0, 0], results, [("H", moment) for moment in MOMENTS], (COLORS[6], COLORS[3], COLORS[0]),
                "Claimed: left of 0. Total entropy H")
        _slopes(axes[0, 1], results, [("H_S", MOMENTS[1]), ("H_F", MOMENTS[1])], (COLORS[4], COLORS[1]),
                "Its two parts: within successes, within failures")
        _levels(axes[1, 0], results)
        _one_step(axes[1, 1], results["table"])
        save(figure, path)


def _slopes(ax, results: dict, shown, colors, title: str) -> None:
    """Slopes of asym_pure_loo with 95% intervals, a row per regime."""
    names = list(results["traces"])
    for k, ((part, moment), color) in enumerate(zip(shown, colors, strict=True)):
        for y, name in enumerate(names):
            family = families(results["traces"][name])["asym_pure_loo"]
            per_seed = slope(*points(*family, METRIC[part], moment)).per_seed
            there = per_seed[np.isfinite(per_seed)]
            if len(there) > 1:
                mean, half = interval(there)
                ax.errorbar(mean, y + 0.2 * (k - (len(shown) - 1) / 2), xerr=half, fmt="o", ms=4, lw=1.4, color=color)
        ax.plot([], [], "o", color=color, label=f"{part} {moment}")
    ax.axvline(0, color="#444444", lw=0.8)
    ax.set_xscale("symlog", linthresh=0.02, linscale=1.5)
    ticks = (-0.1, -0.02, -0.01, 0, 0.01, 0.02, 0.1, 0.5)
    ax.set_xticks(ticks, [f"{x:g}" for x in ticks], fontsize=8)
    ax.minorticks_off()
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="slope per unit of log(m_S/m_F), nats (linear to .02)")
    ax.set_title(title)
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3)


def _levels(ax, results: dict) -> None:
    """H at the end in a regime with capacity per prompt, rules of all families."""
    name = next((n for n in results["traces"] if n == "head + table, G 4"), next(iter(results["traces"])))
    for family, (trace, labels) in families(results["traces"][name]).items():
        x, values = points(trace, labels, "train_entropy", MOMENTS[-1])
        mean, half = interval(values)
        color, marker = FAMILY[family]
        ax.errorbar(x, mean, yerr=half, fmt=marker, ms=5, lw=1.2, color=color, label=family)
    ax.set(xlabel="log(m_S/m_F) at the start", ylabel="entropy at the end (nats)", ylim=(0, None))
    ax.set_title(f"{name}: rules at the end of the run")
    ax.legend(fontsize=8, loc="center right", bbox_to_anchor=(1, 0.4))


def _one_step(ax, table: dict) -> None:
    """Measured dH less the first order, against the second."""
    for y, step in enumerate(table.values()):
        mean, half = interval(step["measured"] - step["first"])
        ax.errorbar(mean, y, xerr=half, fmt="o", ms=5, lw=1.4, color=COLORS[0], label=None if y else "measured")
        ax.plot(step["second"].mean(), y, "|", ms=18, mew=2.5, color=COLORS[1], label=None if y else "predicted")
    ax.axvline(0, color="#444444", lw=0.8)
    ax.set_yticks(np.arange(len(table)), list(table), fontsize=8)
    ax.invert_yaxis()
    ax.set_ylim(len(table) - 0.4, -1.2)  # room for the legend
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="dH of one step of the table beyond first order (nats)")
    ax.set_title("Where the sign enters: the second order,\nnoise of the groups (G 4)")
    ax.legend(fontsize=8)
