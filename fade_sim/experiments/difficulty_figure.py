"""The picture of the experiment on difficulty: one gradient, its variance, the threshold, and what training trades."""

from fade_sim.experiments.difficulty import FOCUSED, PASS_1, PASS_100, THRESHOLD, difference, trades, training_numbers
from fade_sim.figures import COLORS, STYLE, _figure, save

ALPHA_COLORS = (COLORS[0], COLORS[2], COLORS[1])
G_STYLES = (":", "-", "--")
CUT_MARKERS = "osD^"
NEVER = 200.0  # where an infinite break-even is drawn
SHORT = {"snr": "signal to noise of the sum", "n_eff": "N_eff (E_w s)^2", "n_eff_quality": "N_eff E_w s, w = focus",
         "mass_quality": "N_eff E_w s, w = mass"}


def draw(results: dict, path) -> None:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(2, 2, (9.6, 9.4))
        _snr(axes[0, 0], results)
        _variance(axes[0, 1], results)
        _thresholds(axes[1, 0], results["thresholds"])
        _training(axes[1, 1], results["traces"])
        save(figure, path)


def _snr(ax, results: dict) -> None:
    for k, G in enumerate(results["group_sizes"]):
        for a, alpha in enumerate(results["alphas"]):
            ax.plot(results["grid"], results["snr_curves"][k, a], color=ALPHA_COLORS[a % 3], ls=G_STYLES[k % 3], lw=1.7,
                    label=f"alpha {alpha:g}" if k == 1 or len(results["group_sizes"]) == 1 else None)
        at = int(0.62 * len(results["grid"]))
        ax.annotate(f"G = {G}", (results["grid"][at], results["snr_curves"][k, 0, at]), fontsize=9,
                    xytext=(3, 4), textcoords="offset points")
    for (alpha, _, p), values in results["sampled"].items():
        color = ALPHA_COLORS[results["alphas"].index(alpha) % 3]
        ax.plot(p, values.mean(), "o", ms=5, color=color, label=None, mfc="white")
    ax.set(xlabel="solve rate p", ylabel="signal / std of a group's gradient (circles: sampled)")
    ax.set_title("Signal to noise: alpha moves its peak down")
    ax.legend(loc="upper right", fontsize=9)


def _variance(ax, results: dict) -> None:
    p = results["p"]
    for k, G in enumerate(results["group_sizes"]):
        ratio = results["variance"][k, -1]
        ax.plot(p, ratio[:, 0], "o-", color=COLORS[(3, 1, 4)[k % 3]], ms=4, lw=1.6, label=f"two terms, G = {G}")
        ax.plot(p, ratio[:, 1], "o--", color=COLORS[(3, 1, 4)[k % 3]], ms=4, lw=1.2, mfc="white",
                label="with the covariance")
    ax.axhline(1, color="#444444", lw=0.8)
    ax.set(xlabel="solve rate p", ylabel="formula / exact variance", ylim=(0, None))
    ax.set_title(f"Variance formula, alpha {results['alphas'][-1]:g}: right near p = .5")
    ax.legend(fontsize=8.5)


def _thresholds(ax, thresholds: dict) -> None:
    """A row per definition, a marker per cut; the first density filled, the others hollow."""
    densities = list(dict.fromkeys(key[0] for key in thresholds))
    definitions = list(dict.fromkeys(key[1:3] for key in thresholds))
    cuts = list(dict.fromkeys(key[3] for key in thresholds))
    for (density, reading, scale, cut), ratio in thresholds.items():
        y = definitions.index((reading, scale)) + 0.19 * (cuts.index(cut) - 1.5)
        first = density == densities[0]
        ax.plot(min(max(ratio, 0.2), NEVER), y, CUT_MARKERS[cuts.index(cut)], ms=5 if first else 4,
                color=COLORS[3] if first else "#999999", mfc=COLORS[3] if first else "none", mew=0.9,
                zorder=3 if first else 2)
    ax.axvline(THRESHOLD, color="#444444", lw=1, ls=":")
    ax.set_xscale("log")
    ax.set_xticks([0.2, 0.5, 1, THRESHOLD, 5, 10, 50, NEVER], ["≤.2", ".5", "1", "2.25", "5", "10", "50", "never"])
    ax.minorticks_off()
    ax.set_yticks(range(len(definitions)), [SHORT.get(reading) or f"signal alone, C: {scale}"
                                            for reading, scale in definitions], fontsize=8.5)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="signal of hard prompts at which alpha 3 equals alpha 1")
    for k, cut in enumerate(cuts):
        ax.plot([], [], CUT_MARKERS[k], color=COLORS[3], ms=5, label=f"hard: p < {cut}")
    ax.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, -0.13), ncols=4, handletextpad=0.1, columnspacing=0.7)
    others = f"; grey: {len(densities) - 1} other distributions" if len(densities) > 1 else ""
    ax.set_title(f"When does alpha 3 pay?\nBlue: {densities[0]} solve rates{others}", fontsize=10.5)


def _training(ax, traces: dict) -> None:
    """Paired differences to dr_grpo, one marker per regime and rule, 95% intervals."""
    traded = 0
    for k, rule in enumerate(FOCUSED):
        for name, trace in traces.items():
            rows = training_numbers(name, trace)
            x, y = rows[difference(name, PASS_1, rule)], rows[difference(name, PASS_100, rule)]
            traded += k == 0 and trades(rows, name)
            color = (COLORS[2], COLORS[1], COLORS[4])[k]
            ax.errorbar(x.value, y.value, xerr=[[x.value - x.low], [x.high - x.value]],
                        yerr=[[y.value - y.low], [y.high - y.value]], fmt="s" if "Adam" in name else "o", ms=5, lw=0.8,
                        color=color, mfc="white" if "equal" in name else color, alpha=0.85)
        ax.plot([], [], "o", color=(COLORS[2], COLORS[1], COLORS[4])[k], label=rule.replace("alpha=2, delta=2", "2, 2"))
    for marker, mfc, label in (("o", "#666666", "SGD"), ("s", "#666666", "Adam"), ("o", "white", "equal gradients")):
        ax.plot([], [], marker, color="#666666", mfc=mfc, label=label)
    ax.axhline(0, color="#444444", lw=0.8)
    ax.axvline(0, color="#444444", lw=0.8)
    ax.set(xlabel="held-out pass@1 over the run, minus dr_grpo's", ylabel="final held-out pass@100, minus dr_grpo's")
    ax.locator_params(axis="x", nbins=5)
    ax.set_title(f"Training: both powers trade pass@1 for\npass@100 in {traded} of {len(traces)} regimes",
                 fontsize=10.5)
    ax.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, -0.13), ncols=3, handletextpad=0.1, columnspacing=0.8)
