"""The demo's picture: test accuracy against bytes sent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # draws to files, needs no display

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, NullLocator

from bench.demo.bounds import MAX_LOSS, Row
from bench.demo.runs import BASELINE

# Okabe and Ito's palette: told apart by colour-blind readers too.
_COLOURS = ("#000000", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#8C8C8C")
_GREY = "#555555"


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """One curve a row, one point an epoch; `path` ends in .png."""
    figure, axes = pyplot.subplots(figsize=(9.5, 5.2), dpi=150, layout="constrained")
    for row, colour in zip(rows, _COLOURS, strict=True):
        _draw(axes, row, colour)
    baseline = next(row.accuracy for row in rows if row.codec == BASELINE.label)
    axes.axhspan(baseline - MAX_LOSS, baseline, color="#000000", alpha=0.06, linewidth=0)
    axes.annotate(
        f"within {MAX_LOSS:g} point of no compression",
        (0.46, baseline - MAX_LOSS / 2),
        xycoords=("axes fraction", "data"),
        ha="center",
        va="center",
        color=_GREY,
        fontsize=9,
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.margins(x=0.06)
    seen = [accuracy for row in rows for _, accuracy in row.curve]
    spread = max(seen) - min(seen)
    axes.set_ylim(min(seen) - 0.06 * spread, max(seen) + 0.24 * spread)  # labels are above the ends
    axes.set_xlabel("sent by each process since the start (logarithmic)", color=_GREY)
    axes.set_ylabel("test accuracy", color=_GREY)
    axes.set_title(
        f"{rows[0].data}: the same training, a point after each epoch", loc="left", fontsize=12
    )
    axes.grid(color="#000000", alpha=0.08)
    axes.tick_params(colors=_GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color("#BBBBBB")
    figure.savefig(path)
    pyplot.close(figure)


def bytes_text(value: float) -> str:
    """A size to three digits: 1.35 GB."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def _draw(axes: pyplot.Axes, row: Row, colour: str) -> None:
    sent, accuracies = zip(*row.curve, strict=True)
    line = "-" if row.error_feedback else "--"
    axes.plot(sent, accuracies, line, color=colour, linewidth=1.8, marker="o", markersize=3.5)
    axes.plot(sent[-1], accuracies[-1], "o", color=colour, markersize=8)
    label = row.codec.replace(", ", ",\n")
    above = row.error_feedback
    axes.annotate(
        f"{label}\n{row.accuracy:.1f} %\n{bytes_text(sent[-1])}",
        (sent[-1], accuracies[-1]),
        xytext=(0, 9) if above else (9, -4),
        textcoords="offset points",
        ha="center" if above else "left",
        va="bottom" if above else "top",
        color=colour,
        fontsize=9,
    )
