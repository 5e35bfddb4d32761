"""Removals that no test notices, and why that is as it should be."""

from __future__ import annotations

from typing import NamedTuple


class Survivor(NamedTuple):
    """A removal as `mutations.py` prints it, without its line."""

    file: str
    text: str
    why: str


_INT = "no thread has elements beyond its tile; it keeps the number an int from 2^31 elements on"

SURVIVORS = (
    Survivor(
        "topk_decode.cu",
        "min(int64_t{kTile}, row.row.length - first) -> row.row.length - first",
        _INT,
    ),
    Survivor(
        "topk_scan.cu",
        "min(uint32_t{kScanTile}, row.length - first) -> row.length - first",
        _INT,
    ),
)
