"""The table, the JSON lines and the picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # draws to files, needs no display

from matplotlib import pyplot
from rich.table import Table

from bench.train.rows import Row, Training


def table(rows: Sequence[Row], targets: dict[str, float], data: str) -> Table:
    """All rows, case after case.

    Args:
      targets: by model, the accuracy that counts as reached.
    """
    told = ", ".join(f"{target:g} % of {model}" for model, target in targets.items())
    result = Table(
        title=f"Time to accuracy: {told}",
        caption=f"{data}. Medians of steps, without evaluation; bytes are the interface's. "
        "Differences of final accuracy from float32 are paired by seed, ± half of the mean's 95 % "
        "interval.",
    )
    result.add_column("case", no_wrap=True)
    result.add_column("method", no_wrap=True)
    for heading in (
        "step",
        "samples\na second",
        "MB a step\nsent by a rank",
        "time to\naccuracy",
        "sooner than\nfloat32",
        "sooner\nthan FP16",
        "final\naccuracy",
        "difference,\npoints",
        "",
    ):
        result.add_column(heading, justify="right", no_wrap=True)
    case = None
    for row in rows:
        name = f"{row.case.model}, {row.case.ranks} × {row.case.link}"
        result.add_row(
            name if row.case != case else "",
            row.method,
            f"{row.step * 1e3:.1f} ms",
            f"{row.samples:,.0f}",
            f"{row.sent / 1e6:.2f}",
            "not reached" if row.reached is None else f"{row.reached:.2f} s",
            _factor(row.sooner),
            _factor(row.sooner_than_half),
            f"{row.accuracy:.2f} %",
            _difference(row),
            "[red]✗[/]" if row.faults else "[green]✓[/]",
            end_section=False,
        )
        case = row.case
    return result


def write_lines(trainings: Sequence[Training], rows: Sequence[Row], path: Path) -> None:
    """One JSON object a training, then one a row."""
    with path.open("w", encoding="utf-8") as file:
        for kind, things in (("training", trainings), ("row", rows)):
            for thing in things:
                values = {"kind": kind, **asdict(thing)}
                plain = {k: None if v == math.inf else v for k, v in values.items()}
                file.write(json.dumps(plain, ensure_ascii=False) + "\n")


def write_plot(trainings: Sequence[Training], targets: dict[str, float], path: Path) -> None:
    """Accuracy against seconds of training, a panel a case, a line a method, the first seed's."""
    cases = list(dict.fromkeys(training.case for training in trainings))
    figure, panels = pyplot.subplots(
        len(cases),
        1,
        figsize=(9, 1 + 3.2 * len(cases)),
        dpi=150,
        squeeze=False,
        layout="constrained",
    )
    for axes, case in zip(panels[:, 0], cases, strict=True):
        mine = [t for t in trainings if t.case == case]
        for training in (t for t in mine if t.seed == mine[0].seed):
            seconds = [sum(training.times[:steps]) for steps, _ in training.curve]
            accuracies = [accuracy for _, accuracy in training.curve]
            axes.plot(seconds, accuracies, "o-", markersize=3, label=training.method)
        axes.axhline(targets[case.model], color="#000000", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_ylabel("test accuracy, %")
        axes.set_title(f"{case.model}, {case.ranks} × {case.link}", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    panels[-1, 0].set_xlabel("seconds of training (logarithmic)")
    figure.savefig(path)
    pyplot.close(figure)


def _factor(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ×"


def _difference(row: Row) -> str:
    half = "" if math.isinf(row.margin) else f" ± {row.margin:.2f}"
    return f"{row.difference:+.2f}{half}"
