"""The picture of `fade-llm compare`: a row per quantity, simulator and transformer side by side for each regime."""

import textwrap
from pathlib import Path

import matplotlib
import numpy as np

from fade_sim.figures import STYLE, _figure, rule_style, save
from llm.compare import QUANTITIES, Column

LIMITS = {"rank-1 energy": (0, 1.02), "pass@1, training": (0, 1), "pass@1, held out": (0, 1)}
FLOOR = 0.01  # of Lambda, on its log axis


def draw(paired: list[tuple[Column | None, Column]], note: str, path: Path) -> None:
    """paired: (simulator or None, transformer) of each regime."""
    columns = [(what, column) for pair in paired
               for what, column in zip(("simulator", "transformer"), pair, strict=True) if column is not None]
    labels = list(dict.fromkeys(label for _, column in columns for label in column.labels))
    with matplotlib.rc_context(STYLE):
        size = 1.0 + 3.3 * len(columns), 1.6 + 2.1 * len(QUANTITIES)
        figure, axes = _figure(len(QUANTITIES), len(columns), size)
        for c, (what, column) in enumerate(columns):
            axes[0, c].set_title("\n".join([what, *textwrap.wrap(column.name, 34)]))
            axes[-1, c].set_xlabel("steps")
            for r, quantity in enumerate(QUANTITIES):
                _panel(axes[r, c], column, quantity.title, labels)
        for r, quantity in enumerate(QUANTITIES):
            axes[r, 0].set_ylabel("Λ" if quantity.title == "Lambda" else quantity.title)
        handles = [matplotlib.lines.Line2D([], [], lw=2, **rule_style(label, labels)) for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * len(columns)))
        figure.suptitle(note, x=0.01, ha="left", fontsize=10, color="#444444")
        save(figure, path)


def _panel(ax, column: Column, title: str, labels: list[str]) -> None:
    curve = column.curves.get(title)
    if title in LIMITS:
        ax.set_ylim(*LIMITS[title])
    if title == "Lambda":
        if not column.stale or curve is None:
            ax.text(0.5, 0.5, "fresh rollouts: 0" if not column.stale else "not measured", transform=ax.transAxes,
                    ha="center", va="center")
            ax.set_xticks([])
            ax.set_yticks([])
            return
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.axhline(1, color="#444444", lw=0.8, ls="--")
        if np.nanmax(curve.values) < FLOOR:
            ax.set_ylim(FLOOR / 2, 2)
    for label, values in zip(column.labels, curve.values, strict=True):
        _band(ax, curve.steps, np.maximum(values, FLOOR) if title == "Lambda" else values, rule_style(label, labels))


def _band(ax, steps, values, style: dict) -> None:
    """Median over seeds (seeds, R), from smallest to largest; records without a number are left out."""
    there = ~np.isnan(values).all(axis=0)
    steps, values = steps[there], values[:, there]
    ax.plot(steps, np.nanmedian(values, axis=0), lw=1.7, **style)
    ax.fill_between(steps, np.nanmin(values, axis=0), np.nanmax(values, axis=0), color=style["color"], alpha=0.12, lw=0)
