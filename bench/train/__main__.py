"""Trains models to an accuracy, beside Horovod's own, and says how soon it is reached on a link.

What a training learns does not depend on the link. So every method is trained once, with five
seeds, between hosts on fast links, and on each link only some dozens of steps are timed, methods
taking turns. Time to accuracy is the steps to it, each of them the median of those timed there. An
auto is trained with the codecs that it chose on that link.

Hosts are network namespaces of this machine, which need root; without, ranks run on the loopback
interface, where no link is the bottleneck, and the table says so. After every training all ranks
must hold equal weights; trainings of one seed begin with the same weights and data.

Trainings take hours. Each is added to trainings.jsonl, and what is there already is not trained
again: delete the file where it is older than the code.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.ranks import on_hosts_or_loopback
from bench.train.models import TASKS
from bench.train.report import add_lines, choices, read_trainings, table, write_lines, write_plot
from bench.train.rows import (
    BASELINE,
    LINKS,
    METHODS,
    Case,
    Row,
    Timing,
    Training,
    learned_as,
    rows_of,
    unmet,
)

_TIMEOUT = 3600  # seconds a case, or a seed
_ROUNDS, _QUICK_ROUNDS = 12, 3
QUICK = Case("dense", "1gbit", 2)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if everything is kept that is asked of the cases."""
    arguments = _parse(argv)
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(highlight=False, width=160)
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        timings = _timed(arguments, console)
        trainings = _trained(timings, arguments, console)
    except RuntimeError as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return 1
    rows: list[Row] = []
    missed: list[str] = []
    for case, mine in timings.items():
        learned = [t for t in trainings if (t.model, t.ranks) == (case.model, case.ranks)]
        found = rows_of(mine, learned, TASKS[case.model].target, not arguments.quick)
        rows += found
        missed += [f"{case.model}, {case.ranks} × {case.link}: {fault}" for fault in unmet(found)]
    targets = {case.model: TASKS[case.model].target for case in timings}
    data = "; ".join(sorted({TASKS[model].data().name for model in targets}))
    console.print(table(rows, targets, data))
    for chosen in choices(rows):
        console.print(chosen, markup=False, soft_wrap=True)
    lines, picture = arguments.out / "train.jsonl", arguments.out / "train.png"
    write_lines(rows, lines)
    write_plot(rows, trainings, targets, picture)
    console.print(f"Wrote {lines} and {picture}.", soft_wrap=True)
    for fault in missed:
        console.print(f"NOT reached: {fault}", markup=False, soft_wrap=True)
    if not missed:
        console.print("Everything is reached that is asked of these cases.")
    return 1 if missed else 0


def _timed(arguments: argparse.Namespace, console: Console) -> dict[Case, list[Timing]]:
    """Steps of all methods, by where ranks really were."""
    labels = [m.label for m in METHODS if m.label in (BASELINE.label, *arguments.codecs)]
    rounds = _QUICK_ROUNDS if arguments.quick else _ROUNDS
    timings: dict[Case, list[Timing]] = {}
    for case in _cases(arguments):
        console.print(f"{case.model}, {case.ranks} ranks, {case.link}: timing steps ...")
        settings = {"model": case.model, "labels": labels, "rounds": rounds}
        program = [sys.executable, "-m", "bench.train.timing", json.dumps(settings)]
        found, link = on_hosts_or_loopback(program, case.ranks, case.link, _TIMEOUT, console)
        case = Case(case.model, link, case.ranks)  # without root, all links are the same
        timings[case] = timings_of(case, found)
    return timings


def _cases(arguments: argparse.Namespace) -> list[Case]:
    if arguments.quick:
        return [QUICK]
    return [
        Case(model, link, ranks)
        for model in arguments.model
        for link in arguments.link
        for ranks in arguments.ranks
    ]


def _trained(
    timings: dict[Case, list[Timing]], arguments: argparse.Namespace, console: Console
) -> list[Training]:
    """What the rows of these timings need, of which the file may have some."""
    path = arguments.out / "trainings.jsonl"
    kept = [] if arguments.quick else read_trainings(path)
    needed: list[Training] = []
    for model, ranks in dict.fromkeys((case.model, case.ranks) for case in timings):
        task = TASKS[model]
        steps = task.quick_steps if arguments.quick else task.steps
        mine = [t for case, t in timings.items() if (case.model, case.ranks) == (model, ranks)]
        learns = dict.fromkeys(learned_as(one, all_) for all_ in mine for one in all_)
        for seed in range(1, (1 if arguments.quick else arguments.seeds) + 1):
            there = {t.learns: t for t in kept if _of(t) == (model, ranks, seed, steps)}
            missing = [one for one in learns if one not in there]
            if missing:
                console.print(f"{model}, {ranks} ranks, seed {seed}: {', '.join(missing)} ...")
                settings = {"model": model, "learns": missing, "seed": seed, "steps": steps}
                program = [sys.executable, "-m", "bench.train.learn", json.dumps(settings)]
                found = on_hosts_or_loopback(program, ranks, "unshaped", _TIMEOUT, console)[0]
                new = trainings_of(model, ranks, found)
                there |= {t.learns: t for t in new}
                if not arguments.quick:
                    add_lines(new, path)
            needed += [there[one] for one in learns]
    return needed


def _of(training: Training) -> tuple[str, int, int, int]:
    return training.model, training.ranks, training.seed, training.steps


def timings_of(case: Case, found: Iterable[dict[str, Any]]) -> list[Timing]:
    """What rank 0 found, method by method."""
    return [
        Timing(
            case=case,
            **one | {"times": tuple(one["times"]), "codecs": tuple(one["codecs"])},
        )
        for one in found
    ]


def trainings_of(model: str, ranks: int, found: Iterable[dict[str, Any]]) -> list[Training]:
    """What rank 0 found, training by training."""
    return [
        Training(model=model, ranks=ranks, **one | {"curve": tuple(map(tuple, one["curve"]))})
        for one in found
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
