"""The map of all rules: sign, difficulty and scale."""

import numpy as np

from fade_sim.experiments.decomposition import place, sign_ratio_range
from fade_sim.figures import COLORS, STYLE, _figure, save

EDGE = 6.0  # log2 of a sign ratio beyond 2^5: only successes, or only failures
LABELLED = {  # rule of the map -> offset of its name in points
    "reinforce": (-26, -17), "nsr": (9, -3), "dr_grpo": (9, -12), "asym_delta(0.5)": (9, -3), "power(2)": (4, 34),
    "power_asym(alpha=2, delta=0.5)": (-20, -26), "maxrl": (-8, 11), "maxrl_coded": (-44, 30), "linear_r": (-50, -26),
    "wapo": (9, -3), "w_reinforce": (9, -3), "qae(0.4)": (9, 3), "asym_power_gu": (26, 16),
    "pass_at_k_loo1(4)": (6, -16), "asym_re": (9, -3), "a_grae": (9, -3), "pass_at_k_tang": (-30, -16),
}


def draw(results: dict, path) -> None:
    import matplotlib

    rows = _ordered(results)
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(2, 1, (9.6, 6.2 + 0.2 * len(rows)), height_ratios=(4.6, 1.6 + 0.2 * len(rows)))
        _map(axes[0, 0], rows, results["group_size"])
        spec = axes[1, 0].get_subplotspec()
        axes[1, 0].remove()
        _table(spec.subgridspec(1, 3).subplots(sharey=True), rows)
        save(figure, path)


def _ordered(results: dict) -> list[dict]:
    """A row per rule, from failure- to success-biased, then from hard to easy."""
    rows = []
    for label, (m_S, m_F) in results["masses"].items():
        sign, peak, scale = place(results, label)
        size = abs(m_S) + abs(m_F)
        heavy = results["p"][size >= 0.5 * size.max()]
        rows.append({"label": label, "sign": _log2(sign), "peak": peak, "scale": scale,
                     "range": [_log2(x) for x in sign_ratio_range(m_S, m_F, results["p"])],
                     "half": (heavy.min(), heavy.max()), "negative": min(m_S.min(), m_F.min()) < -1e-12})
    return sorted(rows, key=lambda row: (-round(row["sign"], 3), np.nan_to_num(row["peak"], nan=2.0), row["label"]))


def _log2(ratio: float) -> float:
    """Clipped to the edges; a negative ratio has no place on the axis."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.nan_to_num(np.clip(np.log2(ratio), -EDGE, EDGE), nan=EDGE))


def _map(ax, rows: list[dict], group_size: int) -> None:
    """Peak against sign ratio, area by scale; a name for the rules people know."""
    ax.axhline(0, color="#444444", lw=0.8)
    shown = [row for row in rows if np.isfinite(row["peak"]) and not row["negative"]]
    for row in shown:
        ax.plot([row["peak"]] * 2, np.clip(row["range"], -EDGE, EDGE), color="#BBBBBB", lw=1, zorder=1)
        color = COLORS[1] if row["sign"] < -0.05 else COLORS[4] if row["sign"] > 0.05 else COLORS[0]
        ax.scatter(row["peak"], row["sign"], s=28 * row["scale"] ** 0.8, color=color, alpha=0.55, lw=0, zorder=2)
        if row["label"] in LABELLED:
            offset = LABELLED[row["label"]]
            line = {"arrowstyle": "-", "color": "#777777", "lw": 0.7} if abs(offset[1]) > 15 else None
            ax.annotate(row["label"].replace("alpha=2, delta=0.5", "2, 0.5"), (row["peak"], row["sign"]), fontsize=8.5,
                        textcoords="offset points", xytext=offset, arrowprops=line)
    _sign_axis(ax.yaxis, ax.set_ylim)
    ax.set(xlabel="solve rate at which the mass peaks (0: hard prompts, 1: easy ones)", ylabel="sign ratio m_S/m_F",
           xlim=(-0.03, 1.06))
    balanced = sum(abs(row["sign"]) <= 0.05 for row in shown)
    ax.set_title(f"{len(shown)} rules at group size {group_size}, {balanced} of them balanced. Area: scale. Grey: how "
                 f"far the ratio moves\nfor p from .1 to .9. Not here: {len(rows) - len(shown)} rules with flat or "
                 "negative masses", fontsize=10.5)


def _table(axes, rows: list[dict]) -> None:
    """One line per rule: its three coordinates, with what a single number leaves out."""
    y = np.arange(len(rows))
    sign, difficulty, scale = axes
    for i, row in enumerate(rows):
        if not row["negative"]:
            sign.plot(np.clip(row["range"], -EDGE, EDGE), [i, i], color="#BBBBBB", lw=3, solid_capstyle="round")
        difficulty.plot(row["half"], [i, i], color="#BBBBBB", lw=3, solid_capstyle="round")
        sign.plot(row["sign"], i, "x" if row["negative"] else "o", ms=4.5, color=COLORS[3])
    difficulty.plot([row["peak"] for row in rows], y, "o", ms=4.5, color=COLORS[3])
    scale.plot([row["scale"] for row in rows], y, "o", ms=4.5, color=COLORS[3])
    sign.axvline(0, color="#444444", lw=0.8)
    scale.axvline(1, color="#444444", lw=0.8)
    sign.set_yticks(y, [row["label"].replace("alpha=2, delta=0.5", "2, 0.5") for row in rows], fontsize=8.5)
    sign.set_ylim(len(rows) - 0.4, -0.6)
    _sign_axis(sign.xaxis, sign.set_xlim, few=True)
    sign.set_xlabel("m_S/m_F; grey: p from .1 to .9;\ncrosses: a mass is negative")
    sign.set_title("Sign", fontsize=10.5)
    difficulty.set(xlim=(0, 1), xlabel="solve rate of the peak, if there is one;\ngrey: at least half of its mass")
    difficulty.set_title("Difficulty", fontsize=10.5)
    scale.set_xscale("log", base=2)
    ticks = [0.25, 0.5, 1, 2, 4, 8]
    scale.set_xticks(ticks, [f"{t:g}" for t in ticks])
    scale.minorticks_off()
    scale.set_xlabel("mean mass over dr_grpo's\n(uniform solve rates)")
    scale.set_title("Scale", fontsize=10.5)


def _sign_axis(axis, limits, few: bool = False) -> None:
    ticks = {-EDGE: "only F", -4: "1/16", -2: "1/4", 0: "1", 2: "4", 4: "16", EDGE: "only S"}
    ticks = {at: text for at, text in ticks.items() if not few or abs(at) != 4}
    axis.set_ticks(list(ticks), labels=list(ticks.values()))
    limits(-EDGE - 0.6, EDGE + 0.6)
