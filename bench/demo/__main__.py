"""Trains the same network once per codec, compares, and says whether every run is in its bound."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.demo.bounds import Row, judge, make_row
from bench.demo.data import SOURCES, find_source
from bench.demo.launch import RunError, train
from bench.demo.plot import bytes_text, write_plot
from bench.demo.report import last_line, table, write_json
from bench.demo.runs import RANKS, RUNS, Run

_MIN_WIDTH = 116


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if every run is within its bound."""
    arguments = _parse(argv)
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(highlight=False, width=_MIN_WIDTH)
    source = arguments.data or find_source()
    images = SOURCES[source]()
    console.print(f"Data: {images.name}.")
    console.print(
        f"{len(RUNS)} trainings of the same network on {RANKS} Horovod processes, a minute or two "
        "each; they differ in nothing but the codec."
    )
    try:
        rows = [_train(run, source, images.name, arguments.epochs, console) for run in RUNS]
    except RunError as error:
        console.print(str(error), markup=False)
        return 1
    verdicts = judge(rows, images.min_harm)
    picture, objects = arguments.out / "demo.png", arguments.out / "demo.json"
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_plot(rows, picture)
    write_json(rows, verdicts, objects)
    console.print()
    console.print(table(rows, verdicts))
    console.print(last_line(rows, verdicts, [picture, objects]), soft_wrap=True, markup=False)
    return 0 if all(verdict.kept for verdict in verdicts) else 1


def _train(run: Run, source: str, data: str, epochs: int | None, console: Console) -> Row:
    """One training, with a progress bar on a terminal and a line an epoch elsewhere."""
    begun = time.monotonic()
    bar = Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(run.label, total=None, news="starting")

        def show(record: dict[str, Any]) -> None:
            if record["kind"] == "progress":
                bar.update(task, completed=record["step"], total=record["of"])
            elif record["kind"] == "epoch":
                news = f"accuracy {record['accuracy']:5.2f} %"
                bar.update(task, news=news)
                if not console.is_terminal:
                    epoch = f"epoch {record['epoch']}/{record['of']}"
                    console.print(f"  {run.label:<24}{epoch:<14}{news}")

        row = make_row(run, train(run, source, epochs, show), data)
    sent = bytes_text(row.curve[-1][0])
    seconds = time.monotonic() - begun
    console.print(f"{run.label:<26}accuracy {row.accuracy:5.2f} %, {sent} sent, {seconds:.0f} s")
    return row


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.demo", description=__doc__)
    parser.add_argument("--data", choices=SOURCES, help="default: the first that is there")
    parser.add_argument("--epochs", type=int, help="default: as the data set needs")
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks are ended too
    sys.exit(main())
