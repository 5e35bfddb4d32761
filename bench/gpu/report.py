"""What was measured: one row each, a table, lines of JSON, and the targets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

STREAMING = 0.85
"""The least fraction of the copy's bandwidth, for kernels that pass over their tensors once."""
TOPK_TIMES = 1.6
"""Top-k's greatest multiple of the time to read its inputs and write its outputs once."""
TOPK_FASTER = 10.0
LARGEST = 2**28
TOPK, TORCH_TOPK = "topk:density=0.01 encode, feedback", "torch.topk 1 %"


@dataclass(frozen=True)
class Row:
    """One measurement. `bytes_moved` counts inputs and outputs once."""

    name: str
    numel: int
    seconds: float
    bytes_moved: int
    copy_bandwidth: float
    """Bytes a second that a copy of as many elements moves."""
    verified: bool

    @property
    def bandwidth(self) -> float:
        return self.bytes_moved / self.seconds

    @property
    def fraction(self) -> float:
        return self.bandwidth / self.copy_bandwidth

    def as_dict(self) -> dict[str, Any]:
        derived = {"gb_per_s": self.bandwidth / 1e9, "fraction_of_copy": self.fraction}
        return asdict(self) | derived


def table(rows: Sequence[Row]) -> Table:
    """One table of all rows, by size."""
    made = Table("operation", title="Times by CUDA events, medians", title_justify="left")
    for column in ("elements", "time", "GB/s", "of the copy"):
        made.add_column(column, justify="right")
    sizes = sorted({row.numel for row in rows})
    for numel in sizes:
        for row in (r for r in rows if r.numel == numel):
            cells = (_time(row.seconds), f"{row.bandwidth / 1e9:.0f}", f"{row.fraction:.0%}")
            made.add_row(row.name, f"{numel:,}", *cells)
        made.add_section()
    return made


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} µs"


def lines(objects: Sequence[dict[str, Any]]) -> str:
    """JSON, a line each."""
    return "\n".join(json.dumps(one) for one in objects)


def targets(rows: Sequence[Row]) -> list[str]:
    """What the targets come to, for the largest size."""
    large = {row.name: row for row in rows if row.numel == LARGEST}
    said = []
    streaming = [
        r for r in large.values() if r.verified and not r.name.startswith(("topk", "copy"))
    ]
    if streaming:
        slow = [f"{r.name} {r.fraction:.0%}" for r in streaming if r.fraction < STREAMING]
        what = f"below it: {', '.join(slow)}" if slow else "all kernels reach it"
        said.append(f"Target {STREAMING:.0%} of the copy's bandwidth: {what}.")
    if TOPK in large:
        times = 1 / large[TOPK].fraction
        said.append(
            f"Target for {TOPK}: at most {TOPK_TIMES} times the time of its bytes; {times:.2f}."
        )
    if TOPK in large and TORCH_TOPK in large:
        faster = large[TORCH_TOPK].seconds / large[TOPK].seconds
        said.append(f"Target {TOPK_FASTER:.0f} times faster than torch.topk; {faster:.1f} times.")
    return said
