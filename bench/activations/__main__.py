"""Measures memory and time of training steps that keep their activations in different ways.

Each method trains in a process of its own, taking turns with one that keeps them plainly, so that a
drift of the machine's speed is in both alike: compare ratios. Before anything is timed, gradients
must be those of float32 within what the codec explains. Memory is the peak of a step above what the
process has before it: resident, or of the GPU if there is one. The full size takes up to 8 GB and
a quarter of an hour on two cores; other work on the machine disturbs the times.

With `--accuracy`, trains on Fashion-MNIST and on the standard library's text instead, in pairs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.activations import accuracy
from bench.activations.methods import AUTO, METHODS, PLAIN, RECOMPUTE_GRAD, RECOMPUTED, STOCK
from bench.activations.models import FULL
from bench.activations.report import table, verdicts_table, write_lines, write_plot
from bench.activations.rows import Row, judge, make_row, wrong
from bench.child import Child, ChildError

_WIDTH = 100
_TIMEOUT_S = 900.0
# How often each method has its turn, and of how many steps: what a quarter of an hour allows.
TURNS = {"transformer": (2, 1), "resnet50": (2, 1), "mlp": (2, 1)}
TOGETHER = 3  # methods that take turns with one plain process
_QUICK_METHODS = (PLAIN, RECOMPUTE_GRAD, "8-bit", "8-bit" + RECOMPUTED, AUTO + "8-bit")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if every gradient is right; targets do not change it."""
    arguments = _parse(argv)
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(highlight=False, width=_WIDTH)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.accuracy:
        return accuracy.run(arguments.out, arguments.quick, console)
    models = arguments.models or (["transformer"] if arguments.quick else list(FULL))
    methods = arguments.methods or (_QUICK_METHODS if arguments.quick else METHODS)
    busy = os.getloadavg()[0]
    rows: list[Row] = []
    try:
        for model in models:
            rows += _measure(model, methods, arguments.quick, console)
            console.print(table(model, [row for row in rows if row.model == model], busy))
            write_lines(rows, arguments.out / "activations.jsonl")
    except ChildError as error:
        console.print(str(error), markup=False)
        return 1
    for row in rows:
        if row.failure:
            console.print(f"{row.model}, {row.method}: {row.failure}", markup=False)
    write_plot(rows, arguments.out / "activations.png")
    if not arguments.quick:
        console.print(verdicts_table(judge(rows)))
    bad = [f"{row.model}, {row.method}" for row in rows if wrong(row.method, row.error)]
    last = f"WRONG gradients: {'; '.join(bad)}." if bad else "Every gradient of ours is right."
    console.print(f"Wrote {arguments.out}/activations.jsonl and .png. {last}", soft_wrap=True)
    return 1 if bad else 0


def _measure(model: str, methods: Sequence[str], quick: bool, console: Console) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder, _child(model, PLAIN, quick, folder) as plain:
        checked = plain.answer()
        others = [method for method in methods if method != PLAIN]
        for first in range(0, len(others), TOGETHER):
            rows += _group(model, others[first : first + TOGETHER], quick, folder, plain, checked)
            console.print(f"  {model}, {', '.join(others[first : first + TOGETHER])}: measured")
        if PLAIN in methods:
            rounds = [plain.ask(_turns(model, quick)[1])["seconds"]]
            rows.insert(0, make_row(model, PLAIN, checked, checked, rounds, rounds))
    return rows


def _group(
    model: str,
    methods: Sequence[str],
    quick: bool,
    folder: str,
    plain: Child,
    plain_checked: dict[str, Any],
) -> list[Row]:
    """Rows of methods that get ready at the same time, and then take turns with plain steps."""
    rows: dict[str, Row] = {}
    with ExitStack() as stack:
        children = {
            method: stack.enter_context(_child(model, method, quick, folder)) for method in methods
        }
        checked = {}
        for method, child in children.items():
            try:
                checked[method] = child.answer()
            except ChildError as error:
                # Stock methods may fail, and that is a result; ours may not.
                if method not in STOCK:
                    raise
                rows[method] = Row(model, method, failure=_reason(error))
        right = [m for m in checked if not wrong(m, checked[m]["error"])]
        seconds: dict[str, list[list[float]]] = {method: [] for method in (PLAIN, *right)}
        rounds, steps = _turns(model, quick)
        for _ in range(rounds):
            seconds[PLAIN].append(plain.ask(steps)["seconds"])
            for method in right:
                seconds[method].append(children[method].ask(steps)["seconds"])
    for method in checked:
        if method in right:
            times = seconds[method], seconds[PLAIN]
            rows[method] = make_row(model, method, checked[method], plain_checked, *times)
        else:
            apart = checked[method]["error"]
            rows[method] = Row(model, method, error=apart, failure=f"gradients off by {apart:.1e}")
    return [rows[method] for method in methods]


def _turns(model: str, quick: bool) -> tuple[int, int]:
    """How often each method has its turn, and of how many steps."""
    return (1, 2) if quick else TURNS[model]


def _reason(error: ChildError) -> str:
    """The line of a traceback that names the error."""
    lines = [line for line in str(error).splitlines() if "Error" in line and not line[0].isspace()]
    return lines[-1] if lines else str(error).splitlines()[0]


def _child(model: str, method: str, quick: bool, folder: str) -> Child:
    arguments = ["bench.activations.train", "--model", model, "--method", method]
    arguments += ["--expected", str(Path(folder) / "gradients.npz")]
    return Child([*arguments, *(["--quick"] if quick else [])], _TIMEOUT_S)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.activations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small: shows that it works")
    parser.add_argument("--accuracy", action="store_true", help="compare accuracies instead")
    parser.add_argument("--models", nargs="*", choices=list(FULL), help="default: all")
    parser.add_argument("--methods", nargs="*", choices=METHODS, help="default: all")
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended too
    sys.exit(main())
