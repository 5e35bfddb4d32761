"""Trains the demo's network with and without compression, and compares accuracies.

Each seed is trained once without compression and once with each codec, from the same weights and
with the same batches, on the two replicas of a MirroredStrategy on logical CPU devices. A codec is
within its bound if accuracy falls by no more than 0.5 percentage points, mean over five seeds.
With the first seed, gc.CompressedAllReduce must end with the weights of gc.DistributedOptimizer.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.child import Child, ChildError
from bench.demo.data import SOURCES, find_source
from bench.demo.runs import BASELINE, FOUR_BIT, TOPK, Run
from bench.seeds.pairs import CONFIDENCE, MAX_LOSS, Comparison, Training, compare, hook_differs

_WIDTH = 100
_TIMEOUT_S = 7200.0


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    source: str
    seeds: tuple[int, ...]
    codecs: tuple[Run, ...]
    epochs: int


QUICK = Size("digits", (1,), (TOPK,), 2)
# Twice the demo's epochs. Top-k delays a value by as many steps in a short training as in a long
# one, so that it costs less in a long one: after four epochs 0.7 points, after eight 0.3.
_FULL = Size("", (1, 2, 3, 4, 5), (FOUR_BIT, TOPK), 8)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if every codec is within its bound."""
    arguments = _parse(argv)
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(highlight=False, width=_WIDTH)
    size = QUICK if arguments.quick else dataclasses.replace(_FULL, source=find_source())
    if size.source == "digits" and not arguments.quick:
        console.print(
            "Fashion-MNIST is not here: install Debian's package dataset-fashion-mnist, or connect "
            "to the network so that Keras can fetch it.",
            soft_wrap=True,
        )
        return 1
    try:
        trainings = _train_all(size, arguments.jobs, arguments.out, console)
    except ChildError as error:
        console.print(str(error), markup=False)
        return 1
    comparisons = [compare(trainings, run.label) for run in size.codecs]
    console.print()
    console.print(table(comparisons, trainings))
    line, kept = verdict(comparisons, hook_differs(trainings), judged=not arguments.quick)
    console.print(line, soft_wrap=True, markup=False)
    return 0 if kept else 1


def table(comparisons: Sequence[Comparison], trainings: Sequence[Training]) -> Table:
    """One row a codec; the first is without compression."""
    plain = [t for t in trainings if t.codec == BASELINE.label]
    result = Table(
        title=f"{plain[0].data}, two replicas, {plain[0].steps:,} steps, {len(plain)} seeds",
        caption="Differences are in percentage points of test accuracy, of two trainings with the "
        "same seed. The interval is that of their mean, by Student's t.",
    )
    result.add_column("codec", no_wrap=True)
    for heading in (
        "mean\naccuracy",
        "mean\ndifference",
        f"{CONFIDENCE:.0%}\ninterval",
        "differences by seed",
        "bound",
        "",
    ):
        result.add_column(heading, justify="right", no_wrap=True)
    mean = sum(t.accuracy for t in plain) / len(plain)
    result.add_row("none", f"{mean:.2f} %", "", "", "", "", "")
    for row in comparisons:
        low, high = row.mean - row.margin, row.mean + row.margin
        result.add_row(
            row.codec,
            f"{row.accuracy:.2f} %",
            f"{row.mean:+.2f}",
            f"{low:+.2f} … {high:+.2f}" if len(row.differences) > 1 else "none",
            " ".join(f"{difference:+.2f}" for difference in row.differences),
            f"≥ {-MAX_LOSS:+.2f}",
            "[green]✓[/]" if row.kept else "[red]✗[/]",
        )
    return result


def verdict(
    comparisons: Sequence[Comparison], hooks_apart: Sequence[str], *, judged: bool
) -> tuple[str, bool]:
    """What to print last, and whether all is as it should be.

    `hooks_apart` are the codecs with which `CompressedAllReduce` trained otherwise; not `judged`:
    the trainings were too short for accuracies to mean anything.
    """
    faults = [f"{c.codec} (mean {c.mean:+.2f})" for c in comparisons if judged and not c.kept]
    faults += [f"{codec} (CompressedAllReduce ended with other weights)" for codec in hooks_apart]
    if faults:
        return f"NOT within bound: {', '.join(faults)}.", False
    hook = "CompressedAllReduce ended with the optimizer's weights, bit for bit."
    if not judged:
        return f"Too short to judge accuracy. {hook}", True
    unsure = [c.codec for c in comparisons if not c.sure]
    below = f" The interval of {', '.join(unsure)} reaches below it." if unsure else ""
    return f"Every codec is within its bound.{below} {hook}", True


def _train_all(size: Size, jobs: int, out: Path, console: Console) -> list[Training]:
    """All trainings, `jobs` at a time; each is printed, and a line of JSON, when it ends."""
    wanted = [
        (run, engine, seed)
        for seed in size.seeds
        for run, engine in [(BASELINE, "plain"), *((run, "optimizer") for run in size.codecs)]
    ]
    wanted += [(run, "hook", size.seeds[0]) for run in size.codecs]
    console.print(f"Data: {SOURCES[size.source]().name}.")
    console.print(f"{len(wanted)} trainings, {jobs} at a time, of {size.epochs} epochs each.")
    out.mkdir(parents=True, exist_ok=True)
    trainings = []
    with (
        (out / "seeds.jsonl").open("w", encoding="utf-8") as file,
        ThreadPoolExecutor(jobs) as pool,
    ):
        running: set[Child] = set()
        futures = [pool.submit(_train, *each, size, running) for each in wanted]
        try:
            for future in as_completed(futures):
                training = future.result()
                trainings.append(training)
                file.write(json.dumps(dataclasses.asdict(training), ensure_ascii=False) + "\n")
                file.flush()
                console.print(
                    f"  seed {training.seed}  {training.engine:<10}{training.codec:<11}"
                    f"accuracy {training.accuracy:5.2f} %  {training.seconds:4.0f} s"
                )
        except BaseException:  # also when it is told to end: a training would go on for a minute
            pool.shutdown(wait=False, cancel_futures=True)
            for child in running.copy():
                child.end()
            raise
    return trainings


def _train(run: Run, engine: str, seed: int, size: Size, running: set[Child]) -> Training:
    begun = time.monotonic()
    arguments = [
        *("bench.seeds.train", "--engine", engine, "--compression", run.compression),
        *("--seed", str(seed), "--data", size.source, "--epochs", str(size.epochs)),
    ]
    with Child(arguments, _TIMEOUT_S) as child:
        running.add(child)
        record = child.answer()
    seconds = round(time.monotonic() - begun, 1)
    return Training(run.label, run.compression, engine=engine, seed=seed, seconds=seconds, **record)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.seeds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--jobs", type=int, default=cores, help="trainings at a time; default: one a core"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one seed, a few steps: shows that it works"
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended too
    sys.exit(main())
