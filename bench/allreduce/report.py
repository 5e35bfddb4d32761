"""The comparison's table, its JSON lines and its picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # draws to files, needs no display

from matplotlib import pyplot
from matplotlib.ticker import LogLocator
from rich.table import Table

from bench.allreduce.rows import Case, Row, Verdict


def table(case: Case, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> Table:
    """One case's rows."""
    goodput = rows[0].goodput * 8 / 1e9
    result = Table(
        title=f"{case.model}, {case.ranks} hosts, {case.link} (goodput {goodput:.3g} Gbit/s)",
        caption="One whole all-reduce: feedback, encode, exchange, decode; the slowest rank's "
        "median. Attainable: the more of bytes over the link's goodput, and kernels' CPU time on "
        "the cores that all ranks share. Predicted: by the model of gradcomp plan, from goodput, "
        "latency and kernels.",
    )
    result.add_column("method", no_wrap=True)
    for heading in (
        "time",
        "spread",
        "speed-up over\nHorovod float32",
        "MB sent\nby a rank",
        "of the\nplan",
        "attainable",
        "attained",
        "kernels",
        "predicted",
        "",
    ):
        result.add_column(heading, justify="right", no_wrap=True)
    for row, verdict in zip(rows, verdicts, strict=True):
        result.add_row(
            row.method,
            f"{row.time * 1e3:.1f} ms",
            f"± {row.spread:.0%}",
            f"{verdict.speedup:.2f} ×",
            f"{row.sent / 1e6:.2f}",
            f"{row.sent / row.planned:.3f}" if row.planned else "",
            f"{row.attainable * 1e3:.1f} ms",
            f"{row.attained:.2f}",
            f"{row.kernels * 1e3:.1f} ms" if row.kernels else "",
            f"{row.predicted * 1e3:.1f} ms" if row.predicted else "",
            "[red]✗[/]" if verdict.faults else "[green]✓[/]",
        )
    return result


def write_lines(rows: Sequence[Row], verdicts: Sequence[Verdict], path: Path) -> None:
    """One JSON object a row."""
    with path.open("w", encoding="utf-8") as file:
        for row, verdict in zip(rows, verdicts, strict=True):
            derived = {"time": row.time, "attainable": row.attainable, **asdict(verdict)}
            file.write(json.dumps(asdict(row) | derived, ensure_ascii=False) + "\n")


def write_plot(rows: Sequence[Row], verdicts: Sequence[Verdict], path: Path) -> None:
    """Speed-up over Horovod float32 by method, one panel a case."""
    cases = list(dict.fromkeys(row.case for row in rows))
    figure, panels = pyplot.subplots(
        len(cases),
        1,
        figsize=(9, 1.2 + 2.4 * len(cases)),
        dpi=150,
        squeeze=False,
        layout="constrained",
    )
    for case, axes in zip(cases, panels[:, 0], strict=True):
        mine = [(r, v) for r, v in zip(rows, verdicts, strict=True) if r.case == case]
        bars = axes.barh(
            [r.method for r, _ in mine],
            [v.speedup for _, v in mine],
            color=["#8C8C8C" if not r.planned else "#0072B2" for r, _ in mine],
        )
        axes.bar_label(bars, fmt=" %.1f ×", fontsize=8)
        axes.axvline(1, color="#000000", linewidth=0.8)
        axes.invert_yaxis()
        axes.set_xscale("log", subs=())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g} ×")
        axes.margins(x=0.15)
        axes.set_title(f"{case.model}, {case.ranks} hosts, {case.link}", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("times faster than Horovod float32 (logarithmic)")
    figure.savefig(path)
    pyplot.close(figure)
