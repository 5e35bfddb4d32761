"""The table, the lines of JSON and the chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # draws to files, needs no display

from matplotlib import pyplot
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
        for row in rows:
            if row.model == model and not row.failure:
                _draw(axes, row)
        axes.set_title(model, loc="left", fontsize=12)
        axes.set_xlabel("time of a step ÷ plain", color=_GREY)
        axes.set_ylabel("memory above the model's own ÷ plain", color=_GREY)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_GREY)
        axes.grid(color="#000000", alpha=0.08)
    figure.savefig(path)
    pyplot.close(figure)


def _draw(axes: pyplot.Axes, row: Row) -> None:
    if row.method.startswith(AUTO):
        kind = "auto"
    elif row.method.endswith(RECOMPUTED):
        kind = "recompute"
    else:
        kind = "formulas" if row.method in _OURS else "theirs"
    axes.plot(row.time, row.memory, "o", color=_COLOURS[kind])
    at = (row.time, row.memory)
    axes.annotate(
        row.method, at, (5, 4), textcoords="offset points", fontsize=8, color=_COLOURS[kind]
    )
