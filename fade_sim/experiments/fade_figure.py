"""The picture of the experiment on FADE: tuned curves, the pass@k front, the two phases, what the schedule adds."""

import numpy as np

from fade_sim.experiments.fade import STATIC, phases
from fade_sim.experiments.fade_numbers import Regime
from fade_sim.figures import COLORS, STYLE, _curve, _figure, rule_style, save
from fade_sim.report import interval


def draw(results: dict, path) -> None:
    import matplotlib

    name, traces = next(iter(results["regimes"].items()))
    regime = Regime(name, traces)
    with matplotlib.rc_context(STYLE):
        width = 9.6 if len(results["regimes"]) < 6 else 12.4  # long labels of many regimes need room
        figure, axes = _figure(3, 2, (width, 12.0))
        _curves(axes[0, 0], regime)
        _rates(axes[0, 1], regime)
        _front(axes[1, 0], regime)
        _contrasts(axes[1, 1], results)
        _phases(axes[2, 0], regime)
        _entropy(axes[2, 1], regime)
        seeds = len(next(iter(traces.values())).seeds)
        figure.suptitle(f"{name}; each rule at its own best learning rate; 95% intervals over {seeds} seeds", x=0.01,
                        ha="left", fontsize=10, color="#444444")
        save(figure, path)


def shown(regime: Regime) -> list[str]:
    """FADE, its scale control, dr_grpo, the best static rule at the peak and the best at pass@100."""
    names = regime.labels[:len(STATIC)]
    best = [max(names, key=regime.peak), max(names, key=lambda label: regime.last(label, "test_pass@100").mean())]
    return list(dict.fromkeys(["fade", "scale_ema", "dr_grpo", *best]))


def _curves(ax, regime: Regime) -> None:
    labels = shown(regime)
    for label in labels:
        style = rule_style(label, labels)
        _curve(ax, regime.steps, regime.values(label, "test_pass@1"), 0.0, style)
        ax.plot([], [], lw=2, label=f"{label}, lr {regime.best_rate(label):g}", **style)
    top = max(regime.peak(label) for label in labels)
    ax.set(xlabel="steps", ylabel="held-out pass@1", title="Held-out pass@1 at tuned rates",
           ylim=(0.7 * top, 1.1 * top))
    ax.legend(fontsize=8, loc="lower right")


def _rates(ax, regime: Regime) -> None:
    labels = shown(regime)
    for label in labels:
        ax.plot(regime.rates, regime.means[:, regime.labels.index(label)], "o", ms=3, lw=1.8, label=label,
                **rule_style(label, labels))
    ax.set_xscale("log")
    ax.set_xticks(regime.rates, [f"{lr:g}" for lr in regime.rates])
    ax.minorticks_off()
    ax.set(xlabel="learning rate", ylabel="held-out pass@1, mean of the run",
           title="How each rule's rate was chosen")
    ax.legend(fontsize=8, loc="lower center")


def _front(ax, regime: Regime) -> None:
    labels = [label for label in regime.labels if label not in ("scale_only", "fade[h_star=2.0]")]
    for i, label in enumerate(labels):
        x, half_x = interval(regime.last(label, "test_pass@1"))
        y, half_y = interval(regime.last(label, "test_pass@100"))
        color = COLORS[5] if label.startswith("fade") else "#777777" if label.startswith("scale") else COLORS[3]
        ax.errorbar(x, y, xerr=half_x, yerr=half_y, lw=0.5, alpha=0.35, color=color)
        ax.plot(x, y, "os^Dv"[i % 5], ms=6, color=color, label=label)
    ax.set(xlabel="held-out pass@1 at the end", ylabel="held-out pass@100 at the end",
           title="Up and to the right is better\n(blue: static; pink: FADE and its parts; grey: scale)")
    low, high = ax.get_ylim()
    ax.set_ylim(low - 0.45 * (high - low), high)  # room for the legend
    ax.legend(fontsize=7, ncols=2, loc="lower right")


def _contrasts(ax, results: dict) -> None:
    """Mean held-out pass@1 over the run: FADE minus the best static rule, and minus its scale control."""
    regimes = [Regime(name, traces) for name, traces in results["regimes"].items()]
    rows = []
    for regime in regimes:
        statics = regime.labels[:len(STATIC)]
        best = max(statics, key=lambda label, regime=regime: regime.mean(label).mean())
        rivals = [(best, COLORS[3]), ("scale_ema", "#777777")]
        if len(regimes) == 1:
            rivals += [(label, COLORS[5]) for label in regime.labels if label.startswith("fade") and label != "fade"]
        rows += [(f"{regime.name}: - {rival}" if len(regimes) > 1 else f"fade - {rival}", color,
                  regime.mean("fade") - regime.mean(rival)) for rival, color in rivals]
    for y, (_, color, values) in enumerate(rows):
        mean, half = interval(values)
        ax.errorbar(mean, y, xerr=half, fmt="o", ms=5, lw=1.5, color=color)
    ax.axvline(0, color="#444444", lw=0.8)
    ax.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=8 if len(rows) < 12 else 6)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="difference in held-out pass@1, mean of the run", title="Right of 0: FADE is better")


def _phases(ax, regime: Regime) -> None:
    """The gains and the averages behind them, at a small rate, where the phases last long enough to be seen."""
    rate = regime.rates[0]
    trace, at = regime.traces[rate], slice(1, None)
    values = phases(trace)
    for key, color, dash in (("alpha", COLORS[1], "-"), ("delta", COLORS[3], "-"), ("Hhat", COLORS[3], ":"),
                             ("phat", COLORS[1], ":")):
        ax.plot(trace.steps[at], values[key][at], color=color, ls=dash, lw=2,
                label={"Hhat": "Ĥ (nats)", "phat": "p̂"}.get(key, key))
    ax.set(xlabel="steps", ylabel="gain, nats, solve rate", ylim=(0, None))
    ax.set_title(f"FADE's two phases (lr {rate:g}): p̂ sets alpha, which\n"
                 f"peaks at {values['alpha'][at].max():.1f} of at most 3; Ĥ sets delta")
    ax.legend(fontsize=8, ncols=2)


def _entropy(ax, regime: Regime) -> None:
    rate = regime.best_rate("fade")
    for label, color, dash in (("fade", COLORS[5], "-"), ("fade[no_delta]", COLORS[3], "--"),
                               ("fade[no_alpha]", COLORS[1], ":"), ("dr_grpo", COLORS[0], "-")):
        mean = regime.values(label, "train_entropy_success", rate).mean(axis=0)
        ax.plot(regime.steps, np.maximum(mean, 1e-3), color=color, ls=dash, lw=2, label=label)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "25" else "")
    ax.set(xlabel="steps", ylabel="H_S within successes (nats)")
    ax.set_title(f"Diversity of successes, all at lr {rate:g}")
    ax.legend(fontsize=8)
