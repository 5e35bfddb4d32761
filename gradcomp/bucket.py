"""Buckets: which gradients travel together, by which route, and how they are cut among ranks.

A bucket is a table, not a copy. Kernels read the gradients where they are and write one payload.
Cuts fall on the codec's block boundaries, so a scale never crosses the edge of a tensor or a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradcomp.codecs.auto import Auto
from gradcomp.codecs.base import Codec

DEFAULT_BUCKET_BYTES = 25 * 2**20

_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class VariableSpec:
    """One variable as the plan sees it; `codec` None leaves its gradient dense.

    `warmup` has the codecs of the epochs before `codec` is used, one an epoch. `why` tells why
    `codec` is None, where it is.
    """

    index: int
    path: str
    shape: tuple[int, ...]
    dtype: str
    codec: Codec | None
    warmup: tuple[Codec | None, ...] = ()
    why: str = field(default="", compare=False)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def raw_bytes(self) -> int:
        """Bytes that the gradient costs uncompressed: float32, or float64 where it is float64."""
        return self.numel * max(4, _ITEMSIZE[self.dtype])


@dataclass(frozen=True)
class Chunk:
    """The part of a bucket's payload that one rank sums in the two-phase route.

    `segments` is int64 [S, 5], rows (tensor, start, length, kept, stream), see `gradcomp.kernels`.
    """

    segments: np.ndarray
    payload_bytes: int

    @property
    def numel(self) -> int:
        return int(self.segments[:, 2].sum())


@dataclass(frozen=True)
class Bucket:
    """Variables of one codec that are exchanged by one chain of collectives.

    `chunks` has one entry a rank for `two_phase`, one for `all_gather`, none for `dense`. That of a
    codec that decides later is no exchange but where residuals lie, see `make_alternatives`.
    """

    index: int
    codec: Codec | None
    variables: tuple[VariableSpec, ...]
    route: str
    chunks: tuple[Chunk, ...]

    @property
    def raw_bytes(self) -> int:
        return sum(v.raw_bytes for v in self.variables)

    @property
    def payload_bytes(self) -> int:
        """Bytes that stand for this bucket on the wire, once."""
        if self.route == "dense":
            return self.raw_bytes
        return sum(chunk.payload_bytes for chunk in self.chunks)

    @property
    def segments(self) -> np.ndarray:
        """The whole table: the chunks' rows one after the other, which is every tensor in order."""
        return np.concatenate([chunk.segments for chunk in self.chunks])

    def without(self, indices: Collection[int]) -> Bucket:
        """The bucket less the variables of these indices. Cuts stay where they are."""
        kept = [p for p, v in enumerate(self.variables) if v.index not in indices]
        if len(kept) == len(self.variables):
            return self
        variables = tuple(self.variables[p] for p in kept)
        chunks = []
        for chunk in self.chunks:
            segments = chunk.segments[np.isin(chunk.segments[:, 0], kept)]
            segments[:, 0] = np.searchsorted(kept, segments[:, 0])
            chunks.append(_chunk(self.codec, segments))
        return replace(self, variables=variables, chunks=tuple(chunks))


def sent_bytes(route: str, world_size: int, raw: int, payload: int) -> int:
    """Bytes that one rank sends on average: `raw` uncompressed, `payload` encoded."""
    if route == "dense":
        return 2 * (world_size - 1) * raw // world_size
    if route == "all_gather":
        return (world_size - 1) * payload
    if route == "two_phase":
        return 2 * (world_size - 1) * payload // world_size
    raise ValueError(f"unknown route {route!r}; a route is 'dense', 'all_gather' or 'two_phase'")


# Ties go to the route with fewer operations.
_PREFERENCE = ("all_gather", "two_phase", "dense")


def choose_route(routes: Iterable[str], world_size: int, raw: int, payload: int) -> str:
    """The route, of those that the codec declares, that sends the fewest bytes."""
    return min(
        sorted(routes, key=_PREFERENCE.index),
        key=lambda route: sent_bytes(route, world_size, raw, payload),
    )


def make_buckets(
    variables: Sequence[VariableSpec], world_size: int, bucket_bytes: int = DEFAULT_BUCKET_BYTES
) -> tuple[Bucket, ...]:
    """Groups variables of one codec, last variable first since backward makes its gradient first.

    Args:
      variables: in the order of the model.
      world_size: ranks that take part.
      bucket_bytes: raw bytes after which a bucket is full; a larger variable gets its own.
    """
    groups = group_variables(variables, bucket_bytes)
    return tuple(_make_bucket(i, group, world_size) for i, group in enumerate(groups))


def group_variables(
    variables: Sequence[VariableSpec], bucket_bytes: int = DEFAULT_BUCKET_BYTES
) -> list[list[VariableSpec]]:
    """The variables of each bucket, as `make_buckets` groups them for any number of ranks."""
    closed: list[list[VariableSpec]] = []
    open_groups: dict[tuple[Any, ...], list[VariableSpec]] = {}
    for variable in reversed(variables):
        # A collective has one dtype: float64 gradients are reduced in float64.
        key = (variable.codec, variable.warmup, variable.dtype == "float64")
        group = open_groups.get(key, [])
        if group and sum(v.raw_bytes for v in group) + variable.raw_bytes > bucket_bytes:
            closed.append(group)
            group = []
        open_groups[key] = [*group, variable]
    closed.extend(open_groups.values())
    return closed


def _make_bucket(index: int, variables: list[VariableSpec], world_size: int) -> Bucket:
    codec = variables[0].codec
    if isinstance(codec, Auto):
        twice = any("two_phase" in routes_of(c, world_size) for c in codec.allowed)
        route = "two_phase" if twice else "all_gather"
        chunks = cut(codec, variables, world_size if twice else 1)
        return Bucket(index, codec, tuple(variables), route, chunks)
    if codec is not None:
        raw = sum(v.raw_bytes for v in variables)
        payload = sum(codec.payload_size(v.numel) for v in variables)
        route = choose_route(codec.routes, world_size, raw, payload)
        if route != "dense":
            chunks = cut(codec, variables, world_size if route == "two_phase" else 1)
            return Bucket(index, codec, tuple(variables), route, chunks)
    return Bucket(index, None, tuple(variables), "dense", ())


def routes_of(codec: Codec, world_size: int) -> tuple[str, ...]:
    """The routes of a codec's payloads that can be the fastest among so many ranks."""
    # Between two ranks, two phases send as much as an all-gather does, in twice the messages.
    twice = world_size > 2 or "all_gather" not in codec.routes
    return tuple(r for r in codec.routes if r == "all_gather" or (r == "two_phase" and twice))


def make_alternatives(bucket: Bucket, world_size: int) -> tuple[Bucket, ...]:
    """All ways to exchange a bucket: uncompressed, then its candidates' by each of their routes.

    They are cut alike, so that residuals are laid out alike. A bucket whose codec is fixed has
    itself only.
    """
    codec = bucket.codec
    if not isinstance(codec, Auto):
        return (bucket,)
    made = [Bucket(bucket.index, None, bucket.variables, "dense", ())]
    for candidate in codec.allowed:
        for route in routes_of(candidate, world_size):
            parts = world_size if route == "two_phase" else 1
            chunks = cut(candidate, bucket.variables, parts, codec.cut)
            made.append(Bucket(bucket.index, candidate, bucket.variables, route, chunks))
    return tuple(made)


def make_stages(bucket: Bucket, world_size: int) -> tuple[Bucket, ...]:
    """The bucket in each epoch of its warm-up, and then for good; equal ones are the same object.

    Residuals are laid out for the last, so that an earlier one takes its route or is dense.
    """
    stages: dict[Codec | None, Bucket] = {bucket.codec: bucket}
    warmup = bucket.variables[0].warmup if bucket.codec is not None else ()
    for codec in warmup:
        if codec not in stages:
            stages[codec] = _in_stage(bucket, codec, world_size)
    return (*(stages[codec] for codec in warmup), bucket)


def _in_stage(bucket: Bucket, codec: Codec | None, world_size: int) -> Bucket:
    if codec is not None:
        payload = sum(codec.payload_size(v.numel) for v in bucket.variables)
        if choose_route(codec.routes, world_size, bucket.raw_bytes, payload) == bucket.route:
            chunks = cut(codec, bucket.variables, len(bucket.chunks))
            return Bucket(bucket.index, codec, bucket.variables, bucket.route, chunks)
    return Bucket(bucket.index, None, bucket.variables, "dense", ())


def cut(
    codec: Codec, variables: Sequence[VariableSpec], parts: int, unit: int = 0
) -> tuple[Chunk, ...]:
    """Cuts the tensors, laid end to end, into `parts` chunks of nearly equal size.

    Cuts fall on multiples of `unit`, by default `codec.cut`, elements inside a tensor, so there are
    at most `len(variables) + parts - 1` segments, and some chunks of a tiny bucket may be empty.
    """
    unit = unit or codec.cut
    units = [max(1, math.ceil(v.numel / unit)) for v in variables]
    total = sum(units)
    chunks = []
    for part in range(parts):
        low, high = part * total // parts, (part + 1) * total // parts
        rows: list[tuple[int, int, int, int, int]] = []
        first = 0
        for tensor, (variable, count) in enumerate(zip(variables, units, strict=True)):
            begin, end = max(low, first), min(high, first + count)
            if begin < end:
                start = (begin - first) * unit
                stop = min(variable.numel, (end - first) * unit)
                rows.append((tensor, start, stop - start, codec.kept(stop - start), variable.index))
            first += count
        chunks.append(_chunk(codec, np.array(rows, np.int64).reshape(-1, 5)))
    return tuple(chunks)


def _chunk(codec: Codec | None, segments: np.ndarray) -> Chunk:
    assert codec is not None  # dense buckets have no chunks
    if codec.decides:
        return Chunk(segments, 0)
    return Chunk(segments, sum(codec.payload_size(int(length)) for length in segments[:, 2]))
