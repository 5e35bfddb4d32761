"""The rows of the benchmark, its tables and its lines of JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from bench.kernels import ops, targets


@dataclass(frozen=True)
class Row:
    """One kernel or alternative, at one size, on one number of threads.

    `multiple`, `spread` and `least`, the best sample, are of `b += a` on one thread. `floor` is the
    multiple at which the bytes that must be moved would move as fast as those of `b += a`;
    alternatives have none.
    """

    name: str
    numel: int
    threads: int
    milliseconds: float
    multiple: float
    spread: float
    least: float
    bytes_moved: int | None = None
    target: float | None = None

    @property
    def floor(self) -> float | None:
        return self.bytes_moved / (12 * self.numel) if self.bytes_moved else None

    @property
    def gigabytes_per_second(self) -> float | None:
        return self.bytes_moved / self.milliseconds / 1e6 if self.bytes_moved else None

    @property
    def kept(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.multiple <= self.target

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self) | {
            "floor": self.floor,
            "gigabytes_per_second": self.gigabytes_per_second,
            "target_met": self.kept,
        }


@dataclass(frozen=True)
class Bound:
    """A number that must be at least, or at most, another."""

    what: str
    value: float
    limit: float
    at_least: bool
    unit: str

    @property
    def kept(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def table(rows: Sequence[Row], title: str) -> Table:
    """Kernels of one size: a line each, with its one and two threads side by side."""
    result = Table(
        title=title,
        caption="× is multiples of b += a on one thread, measured right before each sample; the "
        "floor is what moving the same bytes at that speed would take. Medians ± half the distance "
        "between the quartiles.",
    )
    result.add_column("kernel", no_wrap=True)
    for heading in ("MB", "floor ×", "1 thread ×", "GB/s", "target", "", "2 threads ×", "faster"):
        result.add_column(heading, justify="right", no_wrap=True)
    second = {row.name: row for row in rows if row.threads == 2}
    for row in (row for row in rows if row.threads == 1):
        two = second.get(row.name)
        result.add_row(
            row.name,
            _number(row.bytes_moved and row.bytes_moved / 1e6, ".0f"),
            _number(row.floor, ".2f"),
            f"{row.multiple:.2f} ± {row.spread:.2f}",
            _number(row.gigabytes_per_second, ".1f"),
            _number(row.target, ".2f"),
            _mark(row.kept),
            "" if two is None else f"{two.multiple:.2f} ± {two.spread:.2f}",
            "" if two is None else f"{row.multiple / two.multiple:.2f}",
        )
    return result


def bounds_table(bounds: Sequence[Bound]) -> Table:
    result = Table(title="Other targets")
    result.add_column("what", no_wrap=True)
    for heading in ("measured", "target", ""):
        result.add_column(heading, justify="right", no_wrap=True)
    for bound in bounds:
        sign = "≥" if bound.at_least else "≤"
        result.add_row(
            bound.what,
            f"{bound.value:.2f} {bound.unit}",
            f"{sign} {bound.limit:g} {bound.unit}",
            _mark(bound.kept),
        )
    return result


def allocator_table(results: dict[str, dict[str, dict[str, float]]]) -> Table:
    """Ops that allocate their outputs, under each setting of the allocator."""
    result = Table(
        title="encode + feedback as an op, into outputs of its own",
        caption="× is multiples of c = a + b into a warm buffer; beside it, page faults a call.",
    )
    result.add_column("op", no_wrap=True)
    for setting in results:
        result.add_column(setting, justify="right", no_wrap=True)
    for name in next(iter(results.values())):
        cells = [results[setting][name] for setting in results]
        result.add_row(name, *(f"{c['multiple']:.2f}  {c['faults']:,.0f}" for c in cells))
    return result


def op_targets(results: dict[str, dict[str, dict[str, float]]]) -> list[Bound]:
    """Ops may cost as many times `c = a + b` as kernels `b += a`, where freed memory is kept."""
    found = ((spec, targets.target_of(spec, targets.FEEDBACK)) for spec in results[ops.KEEPING])
    return [
        Bound(
            f"{spec}: op of {targets.FEEDBACK}, × c = a + b",
            *(results[ops.KEEPING][spec]["multiple"], target, False, "×"),
        )
        for spec, target in found
        if target is not None
    ]


def speed_bounds(rows: Sequence[Row]) -> list[Bound]:
    """Two threads against one, and kernels against what PyTorch has for them."""
    of = {(row.name, row.threads): row for row in rows}
    bounds = []
    for (name, threads), row in of.items():
        two = of.get((name, 2))
        if threads == 1 and row.target is not None and two is not None and "indices" not in name:
            limit = targets.speedup_of(name)
            faster = row.multiple / two.multiple
            bounds.append(Bound(f"{name}: two threads against one", faster, limit, True, "×"))
    pairs = (
        (f"{targets.TOPK.format(0.01)} {targets.FEEDBACK}", "torch.topk 1.0%", "torch.topk", 20.0),
        (f"{targets.INT8} {targets.ENCODE}", "FBGEMM row-wise 8-bit", "FBGEMM's 8-bit", 1.0),
    )
    for ours, theirs, short, limit in pairs:
        if (ours, 1) in of and (theirs, 1) in of:
            faster = of[theirs, 1].multiple / of[ours, 1].multiple
            bounds.append(Bound(f"{ours}: as fast as {short}", faster, limit, True, "×"))
    return bounds


def write_lines(objects: Iterable[dict[str, object]], path: Path) -> None:
    """One JSON object a line."""
    with path.open("w", encoding="utf-8") as file:
        for value in objects:
            file.write(json.dumps(value, ensure_ascii=False) + "\n")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _mark(kept: bool | None) -> str:
    return {None: "", True: "[green]✓[/]", False: "[red]✗[/]"}[kept]
