"""The picture of the experiment on the identity: exact expectation beside sampled training, switch by switch."""

import numpy as np

from fade_sim.experiments import matched
from fade_sim.experiments.identity import EXACT, LEVEL, PARTS, SAME, differs, slopes_of
from fade_sim.figures import COLORS, STYLE, _figure, save
from fade_sim.report import interval

SHOWN = ("no switch", "table + groups of 4", "stale + PPO clip")  # the three lower panels
LINES = (("baseline(0)", "successes only (REINFORCE)", COLORS[4], "--"),
         ("asym_pure_loo(8)", "asym_pure_loo(8)", COLORS[4], "-"),
         ("asym_pure_loo(1)", "asym_pure_loo(1)", COLORS[0], "-"),
         ("asym_pure_loo(0.125)", "asym_pure_loo(0.125)", COLORS[1], "-"),
         ("baseline(1)", "failures only (NSR)", COLORS[1], "--"))
PART_STYLE = ((COLORS[0], "o", "all rollouts, H"), (COLORS[4], "s", "within successes, H_S"),
              (COLORS[1], "D", "within failures, H_F"))


def draw(results: dict, path) -> None:
    import matplotlib

    shown = [name for name in SHOWN if name in results["traces"]]
    rows = len(results["traces"])
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(2, 1, (9.6, 5.2 + 0.33 * rows), height_ratios=(1.3 + 0.33 * rows, 3.2))
        for ax in axes[:, 0]:
            ax.remove()
        grid = axes[0, 0].get_gridspec()
        top = grid[0].subgridspec(1, 2, width_ratios=(1, 1.35)).subplots(sharey=True)
        _exact(top[0], results["apart"])
        _sampled(top[1], results["traces"])
        if shown:
            below = np.atleast_1d(grid[1].subgridspec(1, len(shown)).subplots(sharey=True))
            for ax, name in zip(below, shown, strict=True):
                _trajectory(ax, name, results["traces"][name])
            below[0].set_ylabel("entropy within failures (nats)")
            figure.legend(*below[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
        save(figure, path)


def _exact(ax, apart: dict) -> None:
    """Largest distance of the heads of rules of equal slope, per switch."""
    y = np.arange(len(apart))
    x = np.array([max(float(v.max()), 1e-17) for v in apart.values()])
    ax.plot(x, y, "o", ms=6, color=COLORS[3], clip_on=False)
    ax.axvline(EXACT, color="#444444", lw=1, ls=":")
    ax.set_xscale("log")
    ax.set(xlim=(1e-17, 1e3), xlabel="distance of heads / norm of the head")
    ax.set_xticks([1e-16, 1e-12, 1e-8, 1e-4, 1], ["1e-16", "1e-12", "1e-8", "1e-4", "1"])
    ax.minorticks_off()
    ax.set_yticks(y, list(apart))
    ax.invert_yaxis()
    ax.set_title(f"Exact expectation: no effect of the sign\nunder {int((x < EXACT).sum())} of {len(x)} switches")


def _sampled(ax, traces: dict) -> None:
    """Slopes of the entropies at the level against the log sign ratio, 95% intervals."""
    ax.axvspan(-SAME, SAME, color="#999999", alpha=0.2, lw=0)
    ax.axvline(0, color="#444444", lw=0.8)
    for k, (color, marker, label) in enumerate(PART_STYLE):
        rows = [slopes_of(name, trace)[k] for name, trace in traces.items()]
        x = np.array([[row.value, row.value - row.low, row.high - row.value] for row in rows])
        ax.errorbar(x[:, 0], np.arange(len(rows)) + 0.24 * (k - 1), xerr=x[:, 1:].T, fmt=marker, ms=4, lw=1.3,
                    color=color, label=label)
    ax.set_xscale("symlog", linthresh=0.03, linscale=1.6)
    ticks = [-0.1, -0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set(xlim=(-0.13, 0.4), xlabel=f"nats per unit of log(m_S/m_F), at train pass@1 {LEVEL:g}")
    ax.grid(axis="y", visible=False)
    ax.set_title("Sampled groups: what more weight on\nsuccesses does to the entropy (grey: no effect)")
    ax.legend(fontsize=8.5, loc="lower right", frameon=True, framealpha=0.9)


def _trajectory(ax, name: str, trace) -> None:
    """Entropy within failures against the solve rate, means over seeds where all of them get that far."""
    levels = np.arange(0.36, 0.96, 0.02)
    values = np.array([matched.at_level(trace, PARTS[2][0], level) for level in levels])  # (levels, rules, seeds)
    for label, shown, color, dash in LINES:
        rule = trace.labels.index(label)
        mean, half = interval(values[:, rule])
        ax.plot(levels, mean, color=color, ls=dash, lw=1.8, label=shown)
        ax.fill_between(levels, mean - half, mean + half, color=color, alpha=0.12, lw=0)
    ax.axvline(LEVEL, color="#444444", lw=1, ls=":")
    ax.set(xlabel="train pass@1", xlim=(0.35, 0.97))
    ax.set_xticks([0.4, 0.6, 0.8])
    row = slopes_of(name, trace)[2]
    effect = "success weight keeps it" if row.low > 0 else "success weight lowers it"
    seen = effect if differs(row) else "no effect seen"
    ax.set_title(f"{name}:\n{seen}", fontsize=10.5)


