"""The picture of the experiment on generalisation: by sign, by rank, and held out against training while learning."""

import numpy as np

from fade_sim.experiments import matched
from fade_sim.experiments.generalisation import RANGE, at_level, correlations, rank_spread
from fade_sim.figures import COLORS, STYLE, _figure, save
from fade_sim.report import interval

PAIRS = (  # rule, other, colour, marker
    ("asym_delta(0.3)", "dr_grpo", COLORS[1], "o"), ("asym_delta(4)", "dr_grpo", COLORS[3], "s"),
    ("asym_pure_loo(0.25)", "asym_pure_loo(4)", COLORS[0], "D"))
SHOWN = (("asym_delta(0.3)", COLORS[1]), ("dr_grpo", COLORS[0]), ("asym_delta(4)", COLORS[3]), ("power(2)", COLORS[4]))


def draw(results: dict, path) -> None:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(2, 2, (10.6, 6.4 + 0.3 * len(results)))
        _signs(axes[0, 0], results)
        _ranks(axes[0, 1], results)
        _cloud(axes[1, 0], results)
        _while_learning(axes[1, 1], results)
        save(figure, path)


def _rows(ax, results: dict, labels=None) -> None:
    ax.axvline(0, color="#444444", lw=0.8)
    ax.set_yticks(range(len(results)), labels or list(results), fontsize=8)
    ax.set_ylim(len(results) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


def _signs(ax, results: dict) -> None:
    for k, (rule, other, color, marker) in enumerate(PAIRS):
        for y, (name, trace) in enumerate(results.items()):
            values = at_level(name, trace, "test_pass@1")
            gap = values[trace.labels.index(rule)] - values[trace.labels.index(other)]
            gap = gap[np.isfinite(gap)]
            if len(gap) > 1:
                mean, half = interval(gap)
                ax.errorbar(mean, y + 0.2 * (k - 1), xerr=half, fmt=marker, ms=4, lw=1.3, color=color)
        ax.plot([], [], marker, color=color, label=f"{rule} - {other}")
    _rows(ax, results)
    ax.set(xlabel="difference in held-out pass@1")
    ax.locator_params(axis="x", nbins=6)
    ax.set_title("By sign, at equal train pass@1.\nClaimed: dots left of 0, squares right")
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.3, -0.14), ncols=1)


def _ranks(ax, results: dict) -> None:
    labels = []
    for y, (name, trace) in enumerate(results.items()):
        energy, held_out = (at_level(name, trace, metric) for metric in ("rank1", "test_pass@1"))
        spread = rank_spread(energy)
        labels.append(f"{name} ({spread:.2f})")
        per_seed = correlations(energy, held_out)
        per_seed = per_seed[np.isfinite(per_seed)]
        if len(per_seed) > 1:
            mean, half = interval(per_seed)
            ax.errorbar(mean, y, xerr=half, fmt="o", ms=5, lw=1.4, color=COLORS[3] if spread >= RANGE else "#aaaaaa")
    _rows(ax, results, labels)
    ax.set(xlabel="rank correlation over rules", xlim=(-1.05, 1.05))
    ax.set_title("By rank-1 energy (range over rules). Claimed:\nleft of 0. Grey: the rules differ too little")


def _cloud(ax, results: dict) -> None:
    """A dot per rule and regime, means over the seeds in which rule and dr_grpo reach the level."""
    for k, (name, trace) in enumerate(results.items()):
        base = trace.labels.index("dr_grpo")
        x, y = (values - values[base] for values in (at_level(name, trace, m) for m in ("rank1", "test_pass@1")))
        seen = np.isfinite(x) & np.isfinite(y)
        points = [(x[i][seen[i]].mean(), y[i][seen[i]].mean()) for i in range(len(x)) if i != base and seen[i].any()]
        marker = "osD^vP*X<>dhp"[k % 13]
        ax.plot(*zip(*points, strict=True), marker, ms=5, color=COLORS[k % len(COLORS)], label=name, alpha=0.85)
    ax.axhline(0, color="#444444", lw=0.8)
    ax.axvline(0, color="#444444", lw=0.8)
    ax.set(xlabel="rank-1 energy above dr_grpo's", ylabel="held-out pass@1 above dr_grpo's")
    ax.set_title("All rules and regimes at equal train pass@1")
    ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _while_learning(ax, results: dict) -> None:
    """Held-out against train pass@1, in the regime with the widest range of rank-1 energy."""
    name = max(results, key=lambda n: rank_spread(at_level(n, results[n], "rank1")))
    trace = results[name]
    for rule, color in SHOWN:
        i = trace.labels.index(rule)
        train, test = (trace.values[f"{split}_pass@1"][i].mean(axis=0) for split in ("train", "test"))
        ax.plot(train, test, lw=1.8, color=color, label=rule)
        ax.plot(train[-1], test[-1], "o", ms=5, color=color)
    level = matched.at_level(trace, "train_pass@1", 0.5)
    low = float(np.nanmin(level)) if np.isfinite(level).any() else 0.5
    ax.plot([0.5 * low, 1], [0.5 * low, 1], ":", color="0.6", label="no gap")
    ax.set(xlabel="train pass@1", ylabel="held-out pass@1")
    ax.set_title(f"While learning (dot: the end): {name}")
    ax.legend(fontsize=8, loc="upper left")
