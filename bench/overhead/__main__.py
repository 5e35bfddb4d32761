"""Measures a training step under MirroredStrategy on two logical CPU devices, by what reduces.

A dense model of 25 million parameters on small batches, so that reducing is a large part of a step.
Each reduction is a process of its own, which takes turns with one of the plain strategy round after
round, so that a drift of the machine's speed is in both alike: compare ratios. Before anything is
timed, reductions without a lossy codec must give the plain strategy's weights to the bit. Takes
about 4 GB of memory; other work on the machine disturbs the times.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.child import Child, ChildError
from bench.overhead.rows import Row, make_row
from bench.overhead.variants import PLAIN, VARIANTS, Variant

_WIDTH = 100
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Size:
    """How much is measured: `width` of the model's layers, `variants` beside the plain strategy."""

    width: int
    variants: tuple[Variant, ...]
    rounds: int
    steps: int


_FULL = Size(2048, VARIANTS[1:], rounds=7, steps=5)
QUICK = Size(256, (VARIANTS[3], VARIANTS[-1]), rounds=2, steps=2)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if every reduction is right."""
    arguments = _parse(argv)
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(highlight=False, width=_WIDTH)
    size = QUICK if arguments.quick else _FULL
    busy = os.getloadavg()[0]
    try:
        rows = _measure(size, console)
    except ChildError as error:
        console.print(str(error), markup=False)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "overhead.jsonl"
    lines = [json.dumps(dataclasses.asdict(row), ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    console.print(table(rows, busy))
    wrong = [f"{row.reduction} ({'; '.join(row.faults)})" for row in rows if row.faults]
    last = f"WRONG: {', '.join(wrong)}." if wrong else "Every reduction is right."
    console.print(f"Wrote {path}. {last}", soft_wrap=True, markup=False)
    return 1 if wrong else 0


def table(rows: Sequence[Row], busy: float) -> Table:
    """`busy` is the machine's load average before anything was started."""
    first = rows[0]
    result = Table(
        title=f"{first.parameters:,} parameters, two replicas on {len(os.sched_getaffinity(0))} "
        f"cores, {rows[-1].steps} steps each in {rows[-1].rounds} rounds",
        caption="Medians, quartiles of the steps and range of the rounds' ratios. Over plain and ÷ "
        "plain: against the plain strategy's steps of the same rounds. Both replicas share one "
        "memory, where bytes cost nothing: this is what a codec costs, not what it saves. Load "
        f"average before: {busy:.1f}.",
    )
    result.add_column("reduction", no_wrap=True)
    for heading in ("a step", "quartiles", "over plain", "÷ plain", "range", ""):
        result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        result.add_row(
            row.reduction,
            f"{row.median_ms:.0f} ms",
            f"{row.low_ms:.0f} … {row.high_ms:.0f}",
            f"{row.overhead_ms:+.0f} ms",
            f"{row.ratio:.2f}",
            f"{row.ratio_low:.2f} … {row.ratio_high:.2f}",
            "[red]✗[/]" if row.faults else "[green]✓[/]",
        )
    return result


def _measure(size: Size, console: Console) -> list[Row]:
    """The plain strategy's row is of all rounds; another's ratio, of those it took part in."""
    others = []
    with _child(PLAIN, size) as plain:
        plain_checked = plain.answer()
        for variant in size.variants:
            with _child(variant, size) as child:
                checked = child.answer()
                rounds = [
                    (plain.ask(size.steps), child.ask(size.steps)) for _ in range(size.rounds)
                ]
            plain_rounds, own_rounds = (
                [r["seconds"] for r in part] for part in zip(*rounds, strict=True)
            )
            others.append((variant, checked, own_rounds, plain_rounds))
            console.print(f"  {variant.label}: measured")
    all_plain = [seconds for *_, plain_rounds in others for seconds in plain_rounds]
    rows = [make_row(v, c, plain_checked, own, plain) for v, c, own, plain in others]
    return [make_row(PLAIN, plain_checked, plain_checked, all_plain, all_plain), *rows]


def _child(variant: Variant, size: Size) -> Child:
    index = VARIANTS.index(variant)
    arguments = ["bench.overhead.train", "--variant", str(index), "--width", str(size.width)]
    return Child(arguments, _TIMEOUT_S)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small model, a few steps: shows that it works"
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended too
    sys.exit(main())
