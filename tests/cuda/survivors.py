"""Removals that no test notices, and why that is as it should be."""

from __future__ import annotations

from typing import NamedTuple


class Survivor(NamedTuple):
    """A removal as `mutations.py` prints it, without its line."""

    file: str
    text: str
    why: str


_INT = "no thread has elements beyond its tile; it keeps the number an int from 2^31 elements on"
_IDLE = (
    "a word without elements lies within the shared arrays, and nothing computed of it leaves them "
    "or registers: the thread is spared the work"
)

SURVIVORS = (
    Survivor(
        "topk_sample.cu",
        "row.sample_units > 0",
        "without a sample any threshold gives the same payload: where it leaves too few, all "
        "elements are searched",
    ),
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
    Survivor(
        "topk_search.h",
        "min(kMost, CeilDiv(row.length, kElements)) -> CeilDiv(row.length, kElements)",
        "more blocks share the same work, which is slower and not wrong",
    ),
    Survivor(
        "payloads.h",
        "min(size, (16 - PhaseOf(payload)) % 16) -> (16 - PhaseOf(payload)) % 16",
        "a payload that ends in its head is copied byte by byte all the same; of casts, nvcc 13 "
        "makes a kernel for sm_90 that spills registers without it",
    ),
    Survivor(
        "payloads.h",
        "min(size, (16 - PhaseOf(payload)) % 16) -> size",
        "all bytes are copied one by one, which is slower and not wrong",
    ),
    Survivor("scaled.h", "word.size == 0", _IDLE),  # in the encoder
    Survivor("scaled.h", "word.size == 0", _IDLE),  # in the decoder
)
