"""House style and every picture. The only module that imports Matplotlib at its top.

Pictures are drawn with the object API on the Agg canvas: no display is needed, no global state
is touched, and the bytes depend on the data alone.
"""

import io
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fade_sim.report import interval
from fade_sim.store import write_atomic

# Okabe-Ito: told apart with any colour vision.
COLORS = ("#000000", "#D55E00", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#8C6D31")
STYLES = ("-", "--", ":")
STYLE = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
    "axes.titlesize": 11, "axes.titlelocation": "left", "legend.frameon": False, "savefig.dpi": 130,
    "font.family": "DejaVu Sans", "path.simplify": True,
}
RUN_PANELS = (("rank1", "rank-1 energy of the update"), ("train_entropy", "entropy (nats)"),
              ("test_pass@1", "held-out pass@1"))


def _figure(rows: int, columns: int, size: tuple[float, float], **kwargs) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def save(figure: Figure, path: Path) -> None:
    """PNG, written whole or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    write_atomic(Path(path), buffer.getvalue())


def line_style(i: int) -> dict:
    """Colour and dash of the i-th rule, the same in every panel."""
    return {"color": COLORS[i % len(COLORS)], "linestyle": STYLES[i // len(COLORS) % len(STYLES)]}


def run_figure(traces: dict, subtitles: dict[str, str], path: Path) -> None:
    """Rank-1 energy, entropy and held-out pass@1 against steps; a column per regime; 95% intervals."""
    with matplotlib.rc_context(STYLE):
        size = (1.2 + 4.2 * max(len(traces), 1), 8.4)
        figure, axes = _figure(len(RUN_PANELS), len(traces), size, sharex="col", sharey="row")
        for column, (name, trace) in enumerate(traces.items()):
            for row, (metric, label) in enumerate(RUN_PANELS):
                ax = axes[row, column]
                for i in range(len(trace.labels)):
                    mean, half = interval(trace.values[metric][i].T)
                    ax.plot(trace.steps, mean, lw=1.8, **line_style(i))
                    if not np.isnan(half[-1]):
                        ax.fill_between(trace.steps, mean - half, mean + half, color=COLORS[i % len(COLORS)],
                                        alpha=0.13, lw=0)
                if column == 0:
                    ax.set_ylabel(label)
            axes[0, column].set_title(f"{name}\n{subtitles[name]}")
            axes[-1, column].set_xlabel("steps")
        axes[0, 0].set_ylim(0, 1.02)
        first = next(iter(traces.values()))
        handles = [matplotlib.lines.Line2D([], [], lw=2, **line_style(i)) for i in range(len(first.labels))]
        figure.legend(handles, first.labels, loc="outside lower center", ncols=min(4, len(first.labels)))
        seeds = len(first.seeds)
        figure.suptitle(f"Same dynamics for every rule; mean and 95% interval over {seeds} seed{'s' * (seeds > 1)}",
                        x=0.01, ha="left", fontsize=10, color="#444444")
        save(figure, path)


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
        ax.set(xlabel=f"successes among {G} rollouts", ylabel="weight", title=f"{label}: weights")
        ax.legend()
        ax = axes[0, 1]
        for mass, color, name in ((0, COLORS[3], "$m_S$"), (1, COLORS[1], "$m_F$")):
            ax.plot(p, finite[mass], color=color, lw=2, label=f"{name}, G = {G}")
            if population is not None:
                ax.plot(p, population[mass], color=color, lw=1.2, ls="--", label=f"{name}, infinite group")
        ax.set(xlabel="solve rate p", ylabel="mass", title="gradient masses")
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
    panels = (("mass of successes $m_S$", S / largest, "Blues", (0, 1)),
              ("mass of failures $m_F$", F / largest, "Oranges", (0, 1)),
              ("sign ratio $m_S/m_F$ (log)", np.clip(balance, -4, 4), "RdBu", (-4, 4)))
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
                bar.set_ticks([0, 0.5, 1], labels=["0", "half", "its largest"])
        for k, mass in enumerate((S, F)):
            has = mass.max(axis=1) > 0
            axes[0, k].plot(p[mass.argmax(axis=1)][has], np.arange(n)[has], "o", ms=3.5, color="black", mec="white",
                            mew=0.6)
        axes[0, 0].set_yticks(range(n), [rule[0] for rule in rules], fontsize=8)
        figure.suptitle(f"{n} rules at group size {group_size}; dots: where a mass peaks; dark grey: negative mass; "
                        "light grey: no ratio", x=0.01, ha="left", fontsize=10, color="#444444")
        save(figure, path)


def replay_figure(report, path: Path) -> None:
    """Solve rates of recorded groups, and where each rule puts its mass. report: a `replay.Report`."""
    from fade_sim.replay import DIFFICULTY, HISTOGRAM

    rows = [row for row in report.rules if sum(row.mass) > 0]
    shades = ("#08306B", "#2F7FBC", "#9CC9E2", "#E3EEF8")  # hard to easy
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(1, 2, (11.0, 1.6 + 0.27 * max(len(rows), 10)), width_ratios=(1, 1.25))
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
