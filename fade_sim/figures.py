"""House style and every picture. Only this and the figures of the experiments import Matplotlib at their top.

Pictures are drawn with the object API on the Agg canvas: no display is needed, no global state
is touched, and the bytes depend on the data alone.
"""

import io
import textwrap
import warnings
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fade_sim.errors import InputError
from fade_sim.report import interval
from fade_sim.store import write_atomic

# Okabe-Ito: told apart with any colour vision.
COLORS = ("#000000", "#D55E00", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#8C6D31")
STYLES = ("-", "--", ":")
STYLE = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
    "axes.titlesize": 11, "axes.titlelocation": "left", "legend.frameon": False, "savefig.dpi": 130,
    "font.family": "DejaVu Sans", "text.parse_math": False, "path.simplify": True,
}
RUN_PANELS = (  # metric, label, floor (above 0: a log axis without an upper bound)
    ("rank1", "rank-1 energy of the update", 0.0), ("train_entropy", "entropy (nats, from 0.001)", 1e-3),
    ("test_pass@1", "held-out pass@1", 0.0),
)
FEW_SEEDS = 5
WELL_KNOWN = ("reinforce", "nsr", "rloo", "dr_grpo", "grpo", "dapo", "asym_delta", "reinforce_pp", "pass_at_k_loo1",
              "pass_at_k_chen", "power", "power_unbiased", "maxrl", "maxrl_coded", "fade", "scale_ema")
FORMATS = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def _figure(rows: int, columns: int, size: tuple[float, float], layout="constrained", **kwargs):
    """(figure, axes (rows, columns)); layout None where the caller places the axes itself."""
    figure = Figure(figsize=size, layout=layout)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def save(figure: Figure, path: Path) -> None:
    """A .png, .pdf or .svg, written whole or not at all; the bytes hold no date."""
    kind = Path(path).suffix.lower().removeprefix(".") or "png"
    if kind not in FORMATS:
        raise InputError(f"{path}: cannot draw a .{kind}, expected one of .{', .'.join(FORMATS)}")
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "fade", "text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # drawn as boxes, not lost
        figure.savefig(buffer, format=kind, metadata=FORMATS[kind])
    write_atomic(Path(path), buffer.getvalue())


def rule_style(label: str, labels) -> dict:
    """Colour and dash of a rule: fixed for the best-known, the next free ones of the palette for others."""
    fixed = {"dr_grpo": (COLORS[0], "-"), "fade": (COLORS[5], "-"), "scale_ema": ("#777777", "--"),
             "scale_only": ("#777777", ":"), "fade_unit": (COLORS[5], ":")}
    if label in fixed:
        color, dash = fixed[label]
    else:
        free = [c for c in COLORS if c not in (COLORS[0], COLORS[5])]
        i = [name for name in labels if name not in fixed].index(label)
        color, dash = free[i % len(free)], STYLES[i // len(free) % len(STYLES)]
    return {"color": color, "linestyle": dash}


def run_figure(traces: dict, subtitles: dict[str, str], path: Path) -> None:
    """Rank-1 energy, entropy and held-out pass@1 against steps; a column per regime.

    95% intervals over seeds as bands; with fewer than 5 seeds each seed is a thin line instead.
    """
    with matplotlib.rc_context(STYLE):
        size = (1.2 + 4.2 * max(len(traces), 1), 8.6)
        # Placed by hand below: a layout engine would take as long as the drawing.
        figure, axes = _figure(len(RUN_PANELS), len(traces), size, layout=None, sharex="col", sharey="row")
        title_lines = 1
        for column, (name, trace) in enumerate(traces.items()):
            for row, (metric, label, floor) in enumerate(RUN_PANELS):
                ax = axes[row, column]
                for i, rule in enumerate(trace.labels):
                    _curve(ax, trace.steps, trace.values[metric][i], floor, rule_style(rule, trace.labels))
                last = trace.last(metric).mean(axis=1)
                if len(last) > 1 and np.ptp(trace.values[metric][..., 1:].mean(axis=1), axis=0).max() < 1e-6:
                    ax.text(0.5, 0.9, f"all {len(last)} rules coincide", transform=ax.transAxes, ha="center")
                if column == 0:
                    ax.set_ylabel(label)
            lines = ([] if name == subtitles[name] else [name]) + textwrap.wrap(subtitles[name], 52)
            axes[0, column].set_title("\n".join(lines))
            title_lines = max(title_lines, len(lines))
            axes[-1, column].set_xlabel("steps")
        axes[0, 0].set_ylim(0, 1.02)
        axes[1, 0].set_yscale("log")
        axes[1, 0].yaxis.set_major_formatter("{x:g}")
        axes[1, 0].yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "25" else "")
        first = next(iter(traces.values()))
        handles = [matplotlib.lines.Line2D([], [], lw=2, **rule_style(rule, first.labels)) for rule in first.labels]
        columns = min(2 * len(traces), 4)
        figure.legend(handles, first.labels, loc="lower center", ncols=columns)
        bottom = 0.65 + 0.21 * -(-len(first.labels) // columns)  # inches: label of the axis, rows of the legend
        figure.subplots_adjust(left=0.75 / size[0], right=1 - 0.15 / size[0], bottom=bottom / size[1],
                               top=1 - (0.4 + 0.19 * title_lines) / size[1], hspace=0.09, wspace=0.06)
        seeds = len(first.seeds)
        spread = "one seed" if seeds == 1 else f"mean and 95% interval over {seeds} seeds"
        if 1 < seeds < FEW_SEEDS:
            spread = f"mean of {seeds} seeds, each a thin line"
        figure.suptitle(f"Same dynamics for every rule; {spread}",
                        x=0.01, ha="left", fontsize=10, color="#444444")
        save(figure, path)


def _curve(ax, steps, values, floor: float, style: dict) -> None:
    """Mean over seeds (seeds, records) with its spread, kept where the quantity can be."""
    mean, half = interval(values.T)
    ax.plot(steps, np.maximum(mean, floor), lw=1.8, **style)
    if len(values) >= FEW_SEEDS:
        high = mean + half if floor else np.minimum(mean + half, 1.0)
        ax.fill_between(steps, np.maximum(mean - half, floor), high, color=style["color"], alpha=0.13, lw=0)
    elif len(values) > 1:
        ax.plot(steps, np.maximum(values.T, floor), lw=0.5, alpha=0.6, **style)


def weights_figure(label: str, table: np.ndarray, p: np.ndarray, finite, population, path: Path) -> None:
    """A rule's weights by number of successes, and its masses by solve rate.

    finite: (m_S, m_F) at the group size, on the grid p; population: the same for infinite groups, or None.
    """
    G = len(table) - 1
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(1, 2, (9.6, 3.9))
        ax = axes[0, 0]
        ax.plot(range(1, G + 1), table[1:, 0], "o-", color=COLORS[3], ms=4, label="a success")
        ax.plot(range(G), table[:-1, 1], "s-", color=COLORS[1], ms=4, label="a failure")
        ax.axhline(0, color="#444444", lw=0.8)
        ax.set(xlabel=f"successes among {G} rollouts", ylabel="weight", title=f"{label}: weights, group size {G}")
        ax.legend()
        ax = axes[0, 1]
        for mass, color, name in ((0, COLORS[3], "m_S"), (1, COLORS[1], "m_F")):
            dash = "-" if mass == 0 else (0, (5, 5))  # equal masses stay visible, one on the other
            ax.plot(p, finite[mass], color=color, lw=2.2, ls=dash, label=f"{name}, G = {G}")
            if population is not None:
                ax.plot(p, population[mass], color=color, lw=1.2, ls=":", label=f"{name}, infinite group")
        ax.set(xlabel="solve rate p", ylabel="mass", title=f"{label}: gradient masses")
        ax.legend()
        save(figure, path)


def zoo_figure(rules, p: np.ndarray, group_size: int, path: Path) -> None:
    """A line per rule: its masses and its sign ratio over the solve rate, with the peak of each mass.

    rules: (label, m_S, m_F) each, masses on the grid p. A mass is drawn relative to the rule's largest.
    """
    n = len(rules)
    S, F = (np.array([rule[k] for rule in rules]) for k in (1, 2))
    largest = np.maximum(np.abs(S), np.abs(F)).max(axis=1, keepdims=True)
    largest[largest == 0] = 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        balance = np.log2(S / F)  # NaN where a mass is negative or both are 0
    panels = (("mass of successes m_S", S / largest, "Blues", (0, 1)),
              ("mass of failures m_F", F / largest, "Oranges", (0, 1)),
              ("sign ratio m_S/m_F (log)", np.clip(balance, -4, 4), "RdBu", (-4, 4)))
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure, axes = _figure(1, 3, (11.5, 1.8 + 0.21 * n), sharey=True)
        for ax, (title, image, colors, limits) in zip(axes[0], panels, strict=True):
            cmap = matplotlib.colormaps[colors].with_extremes(bad="#BBBBBB", under="#888888")
            drawn = ax.imshow(np.ma.masked_invalid(image), aspect="auto", cmap=cmap, vmin=limits[0], vmax=limits[1],
                              extent=(p[0], p[-1], n - 0.5, -0.5), interpolation="nearest")
            ax.set(xlabel="solve rate p")
            ax.set_title(title, fontsize=10)
            bar = figure.colorbar(drawn, ax=ax, orientation="horizontal", fraction=0.02, pad=0.01, aspect=30)
            if limits[0] < 0:
                bar.set_ticks([-4, -2, 0, 2, 4], labels=["<1/16", "1/4", "1", "4", ">16"])
            else:
                bar.set_ticks([0, 0.5, 1], labels=["0", "half", "largest"])
        for k, mass in enumerate((S, F)):
            has = mass.max(axis=1) > 0
            axes[0, k].plot(p[mass.argmax(axis=1)][has], np.arange(n)[has], "o", ms=3.5, color="black", mec="white",
                            mew=0.6, clip_on=False, zorder=5)
        axes[0, 0].set_yticks(range(n), [rule[0] for rule in rules], fontsize=8)
        figure.suptitle(f"{n} rules at group size {group_size}; darkest: the larger of a rule's two masses at its "
                        "peak; dots: peaks; dark grey: negative; light grey: no ratio;"
                        "\ndapo: per kept (mixed) group", x=0.01, ha="left", fontsize=10, color="#444444")
        save(figure, path)


def replay_figure(report, path: Path) -> None:
    """Solve rates of recorded groups, and where each rule puts its mass. report: a `replay.Report`."""
    from fade_sim.replay import DIFFICULTY, HISTOGRAM

    rows = [row for row in report.rules if sum(row.mass) > 0]
    if len(rows) > 20:  # the whole zoo: show the ones that people compare, the table has the rest
        rows = [row for row in rows if row.rule.partition("(")[0] in WELL_KNOWN]
    shades = ("#08306B", "#2F7FBC", "#9CC9E2", "#E3EEF8")  # hard to easy
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(1, 2, (11.0, 1.6 + 0.27 * min(max(len(rows), 12), 40)), width_ratios=(1, 1.25))
        ax = axes[0, 0]
        ax.barh(range(len(HISTOGRAM)), report.histogram, color=COLORS[3])
        ax.set_yticks(range(len(HISTOGRAM)), HISTOGRAM)
        ax.set(xlabel="groups", ylabel="recorded solve rate",
               title=f"{report.prompts} prompts, mean solve rate {report.solve_rate:.3f}")
        ax.grid(axis="y", visible=False)
        ax = axes[0, 1]
        left = np.zeros(len(rows))
        for b, name in enumerate(DIFFICULTY):
            share = np.array([row.share[b] for row in rows])
            ax.barh(range(len(rows)), share, left=left, color=shades[b], label=name, edgecolor="white", lw=0.5)
            left += share
        ax.set_yticks(range(len(rows)), [row.rule for row in rows], fontsize=9)
        ax.invert_yaxis()
        ax.set(xlabel="share of the gradient mass", xlim=(0, 1))
        ax.set_title(f"by recorded solve rate, group size {report.group_size}", pad=24)
        ax.grid(visible=False)
        ax.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=8, handlelength=1.2, borderaxespad=0.1)
        save(figure, path)


def sweep_figure(axes, panels: list[dict], metric: str, path: Path) -> None:
    """A metric at the end of training over a grid: lines for one axis, heat maps for two, columns for a third.

    axes: key and values of each; panels: per regime and rule its names and the metric of each seed by
    position on the axes.
    """
    with matplotlib.rc_context(STYLE):
        if len(axes) == 1:
            figure = _sweep_lines(axes[0], panels, metric)
        else:
            figure = _sweep_maps(axes, panels, metric)
        save(figure, path)


def _sweep_lines(axis, panels: list[dict], metric: str) -> Figure:
    """A panel per regime, a line per rule; 95% intervals over seeds, or with few seeds a dot for each."""
    regimes = list(dict.fromkeys(panel["regime"] for panel in panels))
    rules = list(dict.fromkeys(panel["rule"] for panel in panels))
    figure, grid = _figure(1, len(regimes), (1.6 + 4.0 * len(regimes), 4.2), sharey=True)
    numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) and np.isfinite(v) for v in axis.values)
    x = np.array(axis.values if numeric else range(len(axis.values)), dtype=float)
    order = np.argsort(x, kind="stable")
    for ax, regime in zip(grid[0], regimes, strict=True):
        for panel in (p for p in panels if p["regime"] == regime):
            seeds = np.array([panel["values"][(i,)] for i in order])
            mean, half = interval(seeds)
            style = rule_style(panel["rule"], rules)
            few = seeds.shape[1] < FEW_SEEDS
            ax.errorbar(x[order], mean, yerr=None if few else half, marker="o", ms=4, lw=1.6, capsize=3,
                        label=panel["rule"], **style)
            if few:
                ax.plot(x[order], seeds, ".", ms=3, alpha=0.6, color=style["color"])
        ax.set(xlabel=axis.key, title=regime)
        if numeric and x.min() > 0 and x.max() > 20 * x.min():
            ax.set_xscale("log")
        ax.set_xticks(x, [str(value) for value in axis.values])
        ax.minorticks_off()
    grid[0, 0].set_ylabel(metric)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _sweep_maps(axes, panels: list[dict], metric: str) -> Figure:
    """A heat map per regime and rule (and value of the third axis), all on one colour scale."""
    maps = []
    for panel in panels:
        name = " / ".join(part for part in (panel["rule"], panel["regime"]) if part)
        for k in range(len(axes[2].values)) if len(axes) > 2 else (None,):
            tail = () if k is None else (k,)
            seeds = np.array([[panel["values"][(i, j, *tail)] for j in range(len(axes[1].values))]
                              for i in range(len(axes[0].values))])
            title = name + (f"\n{axes[2].key} = {axes[2].values[k]}" if tail else "")
            maps.append((title, np.stack(interval(seeds), axis=-1)))
    columns = len(axes[2].values) if len(axes) > 2 else min(4, len(maps))
    rows = -(-len(maps) // columns)
    cell = 0.95, 0.5  # inches, wide enough for "0.123" over its half-width
    size = columns * (1.3 + cell[0] * len(axes[1].values)) + 1, rows * (1.2 + cell[1] * len(axes[0].values))
    means = np.concatenate([values[..., 0].ravel() for _, values in maps])
    low, high = (np.nanmin(means), np.nanmax(means)) if np.isfinite(means).any() else (0.0, 1.0)
    figure, grid = _figure(rows, columns, (max(size[0], 4.5), max(size[1], 2.6)))
    for ax in grid.flat[len(maps):]:
        ax.set_visible(False)
    for ax, (title, values) in zip(grid.flat, maps, strict=False):
        drawn = ax.imshow(values[..., 0], vmin=low, vmax=high, aspect="auto", cmap="viridis")
        for (i, j), mean in np.ndenumerate(values[..., 0]):
            half = values[i, j, 1]
            text = "-" if np.isnan(mean) else f"{mean:.3f}" + ("" if np.isnan(half) else f"\n±{half:.3f}")
            ax.text(j, i, text, ha="center", va="center", fontsize=7.5,
                    color="white" if high > low and (mean - low) / (high - low) < 0.6 else "black")
        ax.set_xticks(range(len(axes[1].values)), [str(value) for value in axes[1].values])
        ax.set_yticks(range(len(axes[0].values)), [str(value) for value in axes[0].values])
        ax.set(xlabel=axes[1].key, ylabel=axes[0].key)
        ax.set_title(title, fontsize=9.5)
        ax.grid(visible=False)
    figure.colorbar(drawn, ax=list(grid.flat), label=f"{metric}, ± 95% interval", shrink=0.9)
    return figure
