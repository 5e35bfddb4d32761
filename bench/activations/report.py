"""The table, the lines of JSON and the chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # draws to files, needs no display

from matplotlib import pyplot
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from rich.table import Table

from bench.activations.methods import AUTO, RECOMPUTED
from bench.activations.rows import Row, Verdict

_GREY = "#555555"
# Okabe and Ito's palette: told apart by colour-blind readers too.
_COLOURS = {"theirs": "#000000", "formulas": "#0072B2", "recompute": "#D55E00", "auto": "#009E73"}
_OURS = ("FP16", "FP8", "8-bit", "4-bit")


def table(model: str, rows: Sequence[Row], busy: float) -> Table:
    """One model's rows; `busy` is the machine's load average before."""
    result = Table(
        title=f"{model}: memory above the model's own, and time of a step",
        caption="÷ plain: against plain, for time of the same rounds, with their range. Error: of "
        f"all gradients, relative to float32's. Load average before: {busy:.1f}.",
    )
    result.add_column("method", no_wrap=True)
    for heading in ("MB", "÷ plain", "a step", "÷ plain", "range", "error"):
        result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row.failure:
            error = f"{row.error:.1e}" if row.error else ""
            result.add_row(row.method, "fails", "", "", "", "", error)
            continue
        result.add_row(
            row.method,
            f"{row.peak_mb:,.0f}",
            f"{row.memory:.3f}",
            f"{row.seconds * 1e3:,.0f} ms",
            f"{row.time:.2f}",
            f"{row.time_low:.2f} … {row.time_high:.2f}",
            f"{row.error:.1e}",
        )
    return result


def verdicts_table(verdicts: Sequence[Verdict]) -> Table:
    """Each target, and whether it is reached."""
    result = Table(title="Targets")
    result.add_column("target")
    result.add_column("measured", justify="right")
    result.add_column("")
    marks = {True: "[green]reached[/]", False: "[red]missed[/]", None: "not measured"}
    for verdict in verdicts:
        figure = "" if verdict.figure is None else f"{verdict.figure:.3g}"
        result.add_row(str(verdict.target), figure, marks[verdict.reached])
    return result


def write_lines(rows: Sequence[Row], path: Path) -> None:
    """One JSON object a row."""
    lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Memory against time, one plane a model."""
    models = list(dict.fromkeys(row.model for row in rows))
    figure, planes = pyplot.subplots(
        1, len(models), figsize=(7.5 * len(models), 6), dpi=130, layout="constrained", squeeze=False
    )
    for axes, model in zip(planes[0], models, strict=True):
        shown = [row for row in rows if row.model == model and not row.failure]
        for row in shown:
            axes.plot(row.time, row.memory, "o", color=_colour(row.method))
        axes.set_title(model, loc="left", fontsize=12)
        axes.set_xlabel("time of a step ÷ plain", color=_GREY)
        axes.set_ylabel("memory above the model's own ÷ plain", color=_GREY)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_GREY)
        axes.grid(color="#000000", alpha=0.08)
        axes.margins(x=0.15)
        figure.canvas.draw()  # now places are known
        _name_all(axes, shown)
    figure.savefig(path)
    pyplot.close(figure)


def _colour(method: str) -> str:
    if method.startswith(AUTO):
        return _COLOURS["auto"]
    if method.endswith(RECOMPUTED):
        return _COLOURS["recompute"]
    return _COLOURS["formulas" if method in _OURS else "theirs"]


def _name_all(axes: pyplot.Axes, rows: Sequence[Row]) -> None:
    """Writes each point's name beside it, where it covers no other name and no point."""
    points = [axes.transData.transform((row.time, row.memory)) for row in rows]
    taken = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in points]
    # Close by first; to the right before to the left.
    places = [
        (side * (6 + abs(up) / 2), up)
        for up in (0, 7, -7, 14, -14, 22, -22, 30, -30, 40, -40, 50, -50, 60, -60)
        for side in (1, -1)
    ]
    for row in sorted(rows, key=lambda row: row.memory):
        for at in places:
            name = axes.annotate(
                row.method,
                (row.time, row.memory),
                xytext=at,
                textcoords="offset points",
                ha="left" if at[0] > 0 else "right",
                va="center",
                fontsize=8,
                color=_colour(row.method),
                arrowprops={"arrowstyle": "-", "color": "#bbbbbb", "lw": 0.6},
            )
            name.update_positions(axes.figure.canvas.get_renderer())
            box = Text.get_window_extent(name)  # without the line
            if at == places[-1] or not any(box.overlaps(other) for other in taken):
                break
            name.remove()
        taken.append(box.padded(4))
