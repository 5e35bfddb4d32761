"""The picture: every kernel's cost beside its target, and how it changes with size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # draws to files, needs no display

from matplotlib import pyplot

from bench.kernels.report import Row
from bench.kernels.targets import FEEDBACK

_GREY = "#555555"
# Okabe and Ito's palette: told apart by colour-blind readers too.
_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#D55E00", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")


def write_plot(rows: Sequence[Row], sweep: Sequence[Row], path: Path) -> None:
    """Bars of `rows`, kernels of one size, and lines of `sweep`, encode + feedback of all sizes."""
    names = list(dict.fromkeys(row.name for row in rows if row.bytes_moved))
    height = 2 + 0.24 * len(names)
    figure, (bars, lines) = pyplot.subplots(
        1, 2, figsize=(15, max(6.0, height)), dpi=130, layout="constrained"
    )
    _draw_bars(bars, rows, names)
    _draw_lines(lines, sweep)
    for axes in (bars, lines):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_GREY)
        axes.grid(color="#000000", alpha=0.08)
    figure.savefig(path)
    pyplot.close(figure)


def _draw_bars(axes: pyplot.Axes, rows: Sequence[Row], names: Sequence[str]) -> None:
    for threads, colour, shift in ((1, _COLOURS[0], -0.2), (2, _COLOURS[5], 0.2)):
        chosen = {row.name: row for row in rows if row.threads == threads}
        at = [i + shift for i, name in enumerate(names) if name in chosen]
        own = [chosen[name] for name in names if name in chosen]
        label = f"{threads} thread{'s' if threads > 1 else ''}"
        spread = [row.spread for row in own]
        axes.barh(at, [row.multiple for row in own], 0.36, xerr=spread, color=colour, label=label)
        if threads == 1:
            marked = [(i, chosen[name].target) for i, name in enumerate(names) if name in chosen]
            kept = [(i, target) for i, target in marked if target is not None]
            axes.plot(
                [target for _, target in kept],
                [i + shift for i, _ in kept],
                "|",
                color=_COLOURS[3],
                markersize=12,
                markeredgewidth=2,
                label="target, 1 thread",
            )
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("multiples of b += a on one thread", color=_GREY)
    axes.set_title(f"{rows[0].numel / 1e6:.1f} million float32", loc="left", fontsize=12)
    axes.legend(frameon=False, loc="lower right")


def _draw_lines(axes: pyplot.Axes, sweep: Sequence[Row]) -> None:
    chosen = [row for row in sweep if row.name.endswith(FEEDBACK)]
    names = list(dict.fromkeys(row.name for row in chosen))
    for i, name in enumerate(names):
        for threads, style in ((1, "-"), (2, ":")):
            own = [row for row in chosen if row.name == name and row.threads == threads]
            axes.plot(
                [row.numel for row in own],
                [row.milliseconds * 1e6 / row.numel for row in own],
                style,
                color=_COLOURS[i % len(_COLOURS)],
                linewidth=1.5,
                marker="o" if i < len(_COLOURS) else "s",
                markersize=3,
                label=name.removesuffix(f" {FEEDBACK}") if threads == 1 else None,
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("elements", color=_GREY)
    axes.set_ylabel("nanoseconds an element", color=_GREY)
    axes.set_title(f"{FEEDBACK}: — one thread, ··· two", loc="left", fontsize=12)
    axes.legend(frameon=False, fontsize=8)
