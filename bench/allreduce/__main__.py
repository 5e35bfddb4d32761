"""Times whole compressed all-reduces between hosts joined by shaped links, beside Horovod's own.

Hosts are network namespaces of this machine, which need root; without, ranks run on the loopback
interface, where no link is the bottleneck, and the table says so. Every method is verified before
it is timed: ranks hold the same bits, and what is missing is in the residuals.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.allreduce.models import MODELS
from bench.allreduce.predicted import predicted
from bench.allreduce.report import table, write_lines, write_plot
from bench.allreduce.rows import BASELINE, METHODS, Case, Row, judge
from bench.hosts import HostsUnavailableError
from bench.ranks import ENVIRONMENT, LINKS, LOOPBACK, hosts, on_loopback, told

_TIMEOUT, _DDP_TIMEOUT = 900, 300  # seconds a case
QUICK = (Case("1gbit", 2, "resnet50"), Case("1gbit", 4, "resnet50"))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if every row keeps what is asked of it."""
    arguments = _parse(argv)
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(highlight=False, width=144)
    if not importlib.util.find_spec("torch"):
        remedy = "PyTorch is not installed, so DDP is left out: pip install -e '.[bench]'"
        console.print(remedy, markup=False)
    cases = QUICK if arguments.quick else _all_cases(arguments)
    labels = [m.label for m in METHODS if m is BASELINE or m.label in arguments.method]
    rows: list[Row] = []
    loopback: set[Case] = set()
    for case in cases:
        try:
            found, case = _run(case, labels, arguments.rounds, console)
        except RuntimeError as error:
            console.print(f"{case}: {error}", markup=False, soft_wrap=True)
            return 1
        if case in loopback:
            continue  # without root, all links are the same
        loopback |= {case} if case.link == LOOPBACK else set()
        mine = _rows(case, found)
        rows += mine
        console.print(table(case, mine, judge(mine)))
    verdicts = judge(rows)
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines, picture = arguments.out / "allreduce.jsonl", arguments.out / "allreduce.png"
    write_lines(rows, verdicts, lines)
    write_plot(rows, verdicts, picture)
    console.print(f"Wrote {lines} and {picture}.", soft_wrap=True)
    for row, verdict in zip(rows, verdicts, strict=True):
        for fault in verdict.faults:
            where = f"{row.method}, {row.case.model}, {row.case.ranks} × {row.case.link}"
            console.print(f"NOT reached: {where}: {fault}", markup=False, soft_wrap=True)
    return 1 if any(verdict.faults for verdict in verdicts) else 0


def _all_cases(arguments: argparse.Namespace) -> list[Case]:
    return [
        Case(link, ranks, model)
        for model in arguments.model
        for ranks in arguments.ranks
        for link in arguments.link
    ]


def _run(
    case: Case, labels: list[str], rounds: int, console: Console
) -> tuple[dict[str, Any], Case]:
    """What the ranks found, and where they really were."""
    settings: dict[str, Any] = {"model": case.model, "rounds": rounds}
    ddp = [sys.executable, "-m", "bench.allreduce.ddp", json.dumps(settings)]
    settings["labels"] = labels
    program = [sys.executable, "-m", "bench.allreduce.worker", json.dumps(settings)]
    console.print(f"{case.model}, {case.ranks} ranks, {case.link} ...")
    try:
        with hosts(case.ranks, case.link) as all_hosts:
            found = told(all_hosts.run(program, env=ENVIRONMENT, timeout=_TIMEOUT)[0])
            if importlib.util.find_spec("torch") and len(labels) == len(METHODS):
                try:
                    outputs = all_hosts.run(ddp, env=ENVIRONMENT, timeout=_DDP_TIMEOUT)
                except RuntimeError as error:  # PowerSGD may hang, and the others need no PyTorch
                    console.print(f"no rows of DDP: {error}", markup=False, soft_wrap=True)
                else:
                    theirs = told(outputs[0])
                    found["times"] |= theirs["times"]
                    found["sent"] |= theirs["sent"]
    except HostsUnavailableError as error:
        found = on_loopback(program, case.ranks, _TIMEOUT, console, error)
        case = Case(LOOPBACK, case.ranks, case.model)
    return found, case


def _rows(case: Case, found: dict[str, Any]) -> list[Row]:
    return [
        Row(
            case,
            label,
            tuple(times),
            found["sent"][label],
            found["planned"].get(label, 0),
            found["goodput"],
            found["kernels"].get(label, 0.0),
            predicted(case, label, found),
        )
        for label, times in found["times"].items()
    ]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.allreduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="ResNet-50 at 1 Gbit/s only")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4], help="default: 2 4")
    parser.add_argument("--link", nargs="+", choices=LINKS, default=list(LINKS))
    names = [method.label for method in METHODS]
    beside = "those to compare with Horovod float32; DDP is timed beside all of them only"
    parser.add_argument("--method", nargs="+", choices=names, default=names, help=beside)
    parser.add_argument("--rounds", type=int, default=7, help="timed steps a method, default 7")
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
