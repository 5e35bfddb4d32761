"""The table, the lines of JSON and the chart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")  # draws to files, needs no display

from matplotlib import pyplot
from rich.table import Table

from bench.train.rows import AUTO, METHODS, Case, Row, Training

# Okabe and Ito's palette: told apart by colour-blind readers too.
_PALETTE = ("#000000", "#7F7F7F", "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73")
_COLOURS = {method.label: colour for method, colour in zip(METHODS, _PALETTE, strict=True)}


def table(rows: Sequence[Row], targets: dict[str, float], data: str) -> Table:
    """All rows, case after case.

    Args:
      targets: by model, the accuracy that counts as reached.
    """
    told = ", ".join(f"{target:g} % of {model}" for model, target in targets.items())
    result = Table(
        title=f"Time to accuracy: {told}",
        caption=f"{data}. A step: the median of those timed on the link, ± half of the distance "
        "between quartiles; bytes are the interface's. Steps to accuracy: the median over seeds, "
        "trained on fast links; time: their product. Differences of final accuracy from float32 "
        "are paired by seed, ± half of the mean's 95 % interval.",
    )
    result.add_column("case", no_wrap=True)
    result.add_column("method", no_wrap=True)
    for heading in (
        "step, ms",
        "× that of\nfloat32",
        "samples\na second",
        "MB a step\na rank",
        "steps to\naccuracy",
        "time to\naccuracy",
        "sooner:\nfloat32",
        "sooner:\nFP16",
        "final\naccuracy",
        "difference,\npoints",
        "",
    ):
        result.add_column(heading, justify="right", no_wrap=True)
    case = None
    for row in rows:
        here, timing = row.timing.case, row.timing
        result.add_row(
            _name(here) if here != case else "",
            row.method,
            f"{timing.step * 1e3:.1f} ± {timing.spread * 1e3:.1f}",
            f"{row.ratio:.3f}",
            f"{row.samples:,.0f}",
            f"{timing.sent / 1e6:.2f}",
            "never" if row.steps is None else f"{row.steps:,.0f}",
            "never" if row.reached is None else f"{row.reached:.2f} s",
            _factor(row.sooner),
            _factor(row.sooner_than_half),
            f"{row.accuracy:.2f} %",
            _difference(row),
            "[red]✗[/]" if row.faults else "[green]✓[/]",
        )
        case = here
    return result


def choices(rows: Sequence[Row]) -> list[str]:
    """What an auto chose in each case."""
    return [
        f"{_name(row.timing.case)}: auto chose {', '.join(sorted(set(row.timing.codecs)))}"
        for row in rows
        if row.method == AUTO.label
    ]


def write_lines(rows: Sequence[Row], path: Path) -> None:
    """One JSON object a row."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            plain = {k: None if v == math.inf else v for k, v in asdict(row).items()}
            file.write(json.dumps(plain, ensure_ascii=False) + "\n")


def add_lines(trainings: Sequence[Training], path: Path) -> None:
    """One JSON object a training, after those that the file has."""
    with path.open("a", encoding="utf-8") as file:
        for training in trainings:
            file.write(json.dumps(asdict(training), ensure_ascii=False) + "\n")


def read_trainings(path: Path) -> list[Training]:
    """What `add_lines` has written; nothing where there is no file."""
    if not path.exists():
        return []
    found = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Training(**one | {"curve": tuple(map(tuple, one["curve"]))}) for one in found]


def write_plot(
    rows: Sequence[Row], trainings: Sequence[Training], targets: dict[str, float], path: Path
) -> None:
    """Accuracy against seconds of training, a panel a case, a line a method, means over seeds."""
    cases = list(dict.fromkeys(row.timing.case for row in rows))
    figure, panels = pyplot.subplots(
        len(cases),
        1,
        figsize=(9, 1 + 3.2 * len(cases)),
        dpi=130,
        squeeze=False,
        layout="constrained",
    )
    for axes, case in zip(panels[:, 0], cases, strict=True):
        for row in (row for row in rows if row.timing.case == case):
            curves = [
                training.curve
                for training in trainings
                if (training.model, training.ranks) == (case.model, case.ranks)
                and training.learns == row.learns
            ]
            seconds = [steps * row.timing.step for steps, _ in curves[0]]
            accuracies = [fmean(a for _, a in points) for points in zip(*curves, strict=True)]
            axes.plot(
                seconds, accuracies, color=_COLOURS[row.method], linewidth=1.3, label=row.method
            )
        axes.axhline(targets[case.model], color="#000000", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_ylabel("test accuracy, %")
        axes.set_title(_name(case), loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    panels[-1, 0].set_xlabel("seconds of training (logarithmic)")
    figure.savefig(path)
    pyplot.close(figure)


def _name(case: Case) -> str:
    return f"{case.model}, {case.ranks} × {case.link}"


def _factor(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ×"


def _difference(row: Row) -> str:
    half = "" if math.isinf(row.margin) else f" ± {row.margin:.2f}"
    return f"{row.difference:+.2f}{half}"
