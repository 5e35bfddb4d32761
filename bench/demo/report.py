"""The demo's table, its JSON file and its last line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from bench.demo.bounds import Row, Verdict


def table(rows: Sequence[Row], verdicts: Sequence[Verdict]) -> Table:
    result = Table(
        title=f"{rows[0].data}, {rows[0].ranks} Horovod processes, {rows[0].steps:,} steps",
        caption="Bytes are those of one rank, counted at the collective. Both processes share one "
        "machine, where bytes cost nothing: time a step shows what a codec costs, not what it "
        "saves on a network.",
    )
    result.add_column("codec", no_wrap=True)
    for heading in (
        "test\naccuracy",
        "bound",
        "",
        "raw bytes\na step",
        "sent bytes\na step",
        "parameters\ncompressed",
        "compression\nratio",
        "time\na step",
    ):
        result.add_column(heading, justify="right", no_wrap=True)
    for row, verdict in zip(rows, verdicts, strict=True):
        result.add_row(
            row.codec,
            f"{row.accuracy:.2f} %",
            verdict.bound,
            "[green]✓[/]" if verdict.kept else "[red]✗[/]",
            f"{row.raw_bytes_per_step:,.0f}",
            f"{row.sent_bytes_per_step:,.0f}",
            f"{row.compressed_share:.1%}",
            f"{row.compression_ratio:.1f} ×",
            f"{row.step_ms:.1f} ms",
        )
    return result


def write_json(rows: Sequence[Row], verdicts: Sequence[Verdict], path: Path) -> None:
    """A list with one object a row, each on a line of its own."""
    objects = [
        dataclasses.asdict(row)
        | {"bound": verdict.bound, "faults": verdict.faults, "within_bound": verdict.kept}
        for row, verdict in zip(rows, verdicts, strict=True)
    ]
    lines = ",\n".join(json.dumps(value, ensure_ascii=False) for value in objects)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def last_line(rows: Sequence[Row], verdicts: Sequence[Verdict], files: Sequence[Path]) -> str:
    """Where the results are, and whether every run is within its bound."""
    faults = [
        f"{row.codec} ({'; '.join(verdict.faults)})"
        for row, verdict in zip(rows, verdicts, strict=True)
        if not verdict.kept
    ]
    where = " and ".join(str(file) for file in files)
    if faults:
        return f"Wrote {where}. NOT within bound: {', '.join(faults)}."
    return f"Wrote {where}. Every run is within its bound."
