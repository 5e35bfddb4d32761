"""Trains models between hosts joined by shaped links, to an accuracy, beside Horovod's own.

Hosts are network namespaces of this machine, which need root; without, ranks run on the loopback
interface, where no link is the bottleneck, and the table says so. After every training all ranks
must hold equal weights; trainings of one seed begin with the same weights and data.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.ranks import on_hosts_or_loopback
from bench.train.models import TASKS
from bench.train.report import table, write_lines, write_plot
from bench.train.rows import BASELINE, LINKS, METHODS, Case, Row, Training, rows_of, unmet

_TIMEOUT = 3600  # seconds a seed
QUICK = Case("dense", "1gbit", 2)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if everything is kept that is asked of the cases."""
    arguments = _parse(argv)
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(highlight=False, width=150)
    labels = [m.label for m in METHODS if m.label in (BASELINE.label, *arguments.codecs)]
    trainings: list[Training] = []
    rows: list[Row] = []
    missed: list[str] = []
    for case in _cases(arguments):
        task = TASKS[case.model]
        console.print(f"{case.model}, {case.ranks} ranks, {case.link} ...")
        try:
            case, found = _run(case, labels, arguments, console)
        except RuntimeError as error:
            console.print(f"{case}: {error}", markup=False, soft_wrap=True)
            return 1
        if any(training.case == case for training in trainings):
            continue  # without root, all links are the same
        mine = rows_of(found, task.target, not arguments.quick)
        trainings += found
        rows += mine
        missed += [f"{case.model}, {case.ranks} × {case.link}: {fault}" for fault in unmet(mine)]
    targets = {case.model: TASKS[case.model].target for case in {row.case for row in rows}}
    data = "; ".join(sorted({TASKS[model].data().name for model in targets}))
    console.print(table(rows, targets, data))
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines, picture = arguments.out / "train.jsonl", arguments.out / "train.png"
    write_lines(trainings, rows, lines)
    write_plot(trainings, targets, picture)
    console.print(f"Wrote {lines} and {picture}.", soft_wrap=True)
    for fault in missed:
        console.print(f"NOT reached: {fault}", markup=False, soft_wrap=True)
    if not missed:
        console.print("Everything is reached that is asked of these cases.")
    return 1 if missed else 0


def _cases(arguments: argparse.Namespace) -> list[Case]:
    if arguments.quick:
        return [QUICK]
    return [
        Case(model, link, ranks)
        for model in arguments.model
        for link in arguments.link
        for ranks in arguments.ranks
    ]


def _run(
    case: Case, labels: Sequence[str], arguments: argparse.Namespace, console: Console
) -> tuple[Case, list[Training]]:
    """What was trained, and where ranks really were."""
    task = TASKS[case.model]
    seeds = list(range(1, (1 if arguments.quick else arguments.seeds) + 1))
    settings = {
        "model": case.model,
        "labels": list(labels),
        "seeds": seeds,
        "steps": task.quick_steps if arguments.quick else task.steps,
    }
    program = [sys.executable, "-m", "bench.train.worker", json.dumps(settings)]
    timeout = _TIMEOUT * len(seeds)
    found, link = on_hosts_or_loopback(program, case.ranks, case.link, timeout, console)
    case = Case(case.model, link, case.ranks)
    return case, trainings_of(case, found)


def trainings_of(case: Case, found: list[dict[str, Any]]) -> list[Training]:
    """What rank 0 found, method by method."""
    order = [method.label for method in METHODS]
    return [
        Training(
            case=case,
            **{
                **one,
                "times": tuple(one["times"]),
                "curve": tuple((steps, accuracy) for steps, accuracy in one["curve"]),
            },
        )
        for one in sorted(found, key=lambda one: (order.index(one["method"]), one["seed"]))
    ]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    labels = [method.label for method in METHODS if method is not BASELINE]
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a short training of the dense model between two hosts at 1 Gbit/s, one seed",
    )
    parser.add_argument("--model", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4], help="default: 2 4")
    parser.add_argument("--link", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument(
        "--codecs",
        nargs="+",
        choices=labels,
        default=labels,
        help=f"beside {BASELINE.label}; default: all",
    )
    parser.add_argument("--seeds", type=int, default=5, help="trainings a method, default 5")
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
