"""A reducer's state as arrays: taken, and given back to a reducer of any number of ranks.

What counts is the *contribution* of residuals to the reduced gradients to come: Σr over ranks under
Sum, Σr/N under Average, with N the number of all ranks also where only some keep residuals, as one
a host does in a hierarchical exchange; residuals of the second phase are in units of the reduced
gradient, and contribute what they are. It stays the same whatever the number of ranks and keepers,
the routes and the cuts.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from gradcomp.bucket import Bucket, VariableSpec
from gradcomp.errors import StateError
from gradcomp.reducer import Reducer


class Arrays(Protocol):
    """Arrays by name; an open `Archive`, or `Held`."""

    @property
    def names(self) -> frozenset[str]:
        """Of all arrays."""
        ...

    def get(self, array: str, /) -> np.ndarray | None:
        """The array, or None where there is none of that name."""
        ...

    def __getitem__(self, array: str, /) -> np.ndarray: ...


class Held(dict[str, np.ndarray]):
    """Arrays in memory."""

    @property
    def names(self) -> frozenset[str]:
        """Of all arrays."""
        return frozenset(self)


class Snapshot(NamedTuple):
    """One rank's state of a reducer: a description, and arrays in an archive or in memory.

    The arrays' names are `prefix` and then `residual/VARIABLE` or `velocity/VARIABLE`, of the
    variable's shape, or `second/VARIABLE/START`, a piece of the flat variable that the rank sums in
    two-phase.
    """

    description: dict[str, Any]
    archive: Arrays
    prefix: str

    @property
    def world_size(self) -> int:
        return int(self.description["world_size"])

    @property
    def place(self) -> int:
        """The rank's among all that may have kept something: those that encode come first."""
        keeper = self.description["keeper"]
        return int(
            self.description["keepers"] + self.description["rank"] if keeper is None else keeper
        )

    @property
    def places(self) -> int:
        keepers = int(self.description["keepers"])
        return keepers if keepers == self.world_size else keepers + self.world_size

    def residual(self, index: int) -> np.ndarray | None:
        return self.archive.get(f"{self.prefix}residual/{index}")

    def velocity(self, index: int) -> np.ndarray | None:
        return self.archive.get(f"{self.prefix}velocity/{index}")

    def pieces(self) -> dict[int, list[tuple[int, str]]]:
        """By variable the (start, array's name) of every piece."""
        pattern = re.compile(re.escape(f"{self.prefix}second/") + r"(\d+)/(\d+)")
        found: dict[int, list[tuple[int, str]]] = {}
        for name in self.archive.names:
            if match := pattern.fullmatch(name):
                found.setdefault(int(match[1]), []).append((int(match[2]), name))
        return found

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """All arrays of the snapshot, as `arrays_of` would give them."""
        for name in sorted(self.archive.names):
            if name.startswith(self.prefix):
                yield name, self.archive[name]


def describe(reducer: Reducer) -> dict[str, Any]:
    """What has to be known to use the arrays, as plain values for JSON."""
    return {
        "rank": reducer.rank,
        "world_size": reducer.plan.world_size,
        "keeper": reducer.keeper,
        "keepers": reducer.plan.exchanging,
        "average": reducer.average,
        "step": int(reducer.step.numpy()),
        "epoch": reducer.epoch.read(),
        "bucket_bytes": reducer.plan.bucket_bytes,
        "variables": [
            {"path": v.path, "shape": list(v.shape), "codec": row[2], "route": row[5]}
            for v, row in zip(reducer.plan.variables, reducer.plan.rows(), strict=True)
        ],
    }


def arrays_of(reducer: Reducer, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array) of everything that the reducer keeps, one after the other."""
    for index, variable in sorted({**reducer.residuals, **reducer.carried}.items()):
        yield f"{prefix}residual/{index}", variable.numpy()
    for index, variable in reducer.velocities.items():
        yield f"{prefix}velocity/{index}", variable.numpy()
    for bucket in reducer.plan.layouts:
        if bucket.index in reducer.chunk_residuals:
            values = reducer.chunk_residuals[bucket.index].numpy()
            for index, start, stop, offset in _segments(bucket, reducer.keeper):
                yield f"{prefix}second/{index}/{start}", values[offset : offset + stop - start]


def take(reducer: Reducer) -> Snapshot:
    """What the reducer keeps now, copied to host memory."""
    return Snapshot(describe(reducer), Held(arrays_of(reducer, "")), "")


def restore(
    reducer: Reducer, snapshots: Mapping[int, Snapshot], *, each_its_own: bool = False
) -> None:
    """Replaces what the reducer keeps by the snapshots' contribution.

    Args:
      snapshots: by rank, of the ranks that saved. Those that are absent contribute nothing.
      each_its_own: whether every rank restores one snapshot, which no other rank restores; else all
        ranks restore the same ones, and share them out.

    Raises:
      StateError: the snapshots are of other variables, or of another operation.
    """
    some = next(iter(snapshots.values()))
    compare(reducer, some.description)
    # For one process alone it makes no difference which it has.
    average = some.description["average"] if reducer.alone else reducer.average
    scale = reducer.plan.world_size / some.world_size if average else 1.0
    if each_its_own:
        shares = {some.place: scale}
    else:
        shares = _shares(some.places, reducer.plan.exchanging, reducer.keeper, scale)
    by_place = {snapshot.place: snapshot for snapshot in snapshots.values()}
    pieces = [(snapshot.archive, snapshot.pieces()) for snapshot in snapshots.values()]
    for bucket in reducer.plan.layouts:
        firsts = {
            v.index: _share(v, shares, {p: s.residual(v.index) for p, s in by_place.items()})
            for v in bucket.variables
        }
        seconds = {v.index: _second(v, pieces) for v in bucket.variables}
        rest = _share_of_rest(reducer, average, each_its_own)
        # Without the other ranks' files, what no chunk takes is nobody else's.
        give(reducer, bucket, firsts, seconds, rest, keep_rest=each_its_own)
    velocities = {
        v.index: {place: snapshot.velocity(v.index) for place, snapshot in by_place.items()}
        for v in reducer.plan.variables
    }
    for v in reducer.plan.variables:
        if v.index in reducer.velocities:
            reducer.velocities[v.index].assign(_share(v, shares, velocities[v.index]))
    if not reducer.velocities and any(
        u is not None for s in velocities.values() for u in s.values()
    ):
        warnings.warn(
            f'{reducer.name} was saved with error_feedback="momentum" and goes on without: what '
            "its velocities hold is lost",
            stacklevel=3,
        )
    reducer.send_waiting()
    reducer.step.assign(some.description["step"])
    # Files of earlier versions know of no epoch.
    reducer.epoch.variable.assign(some.description.get("epoch", 0))


def restore_found(reducer: Reducer, found: Mapping[int, Snapshot]) -> None:
    """`restore` of what there is: all ranks' snapshots, or those of this process's ranks only."""
    saved = next(iter(found.values())).world_size
    if len(found) < saved == reducer.plan.world_size and reducer.rank in found:
        restore(reducer, {reducer.rank: found[reducer.rank]}, each_its_own=True)
    else:
        restore(reducer, found)


def give(
    reducer: Reducer,
    bucket: Bucket,
    firsts: Mapping[int, np.ndarray],
    seconds: Mapping[int, np.ndarray | None],
    share: float,
    *,
    keep_rest: bool = False,
) -> None:
    """Replaces what the reducer keeps for the variables of `bucket`, all by the variable's index.

    Args:
      firsts: float64 of the variable's shape, this rank's own residual.
      seconds: float32 [numel], the whole residual of the second phase; None where there is none.
      share: of `seconds` that this rank adds to its own residual where the route of the bucket has
        no second phase.
      keep_rest: where it has one, add so what lies outside of the rank's chunk; else that belongs
        to the other ranks' chunks.
    """
    rest = dict(seconds)
    if bucket.index in reducer.chunk_residuals:
        _give_chunk(reducer, bucket, rest)
        if not keep_rest:
            rest.clear()
    for v in bucket.variables:
        total, second = firsts[v.index], rest.get(v.index)
        if second is not None and second.any():
            total = total + share * second.reshape(v.shape)
        _assign(reducer, v.index, total.astype(np.float32))


def _segments(bucket: Bucket, keeper: int | None) -> Iterator[tuple[int, int, int, int]]:
    """(variable, start, stop, offset in the chunk) of what the keeper sums in two-phase."""
    assert keeper is not None  # only keepers have chunks
    offset = 0
    for tensor, start, length, _, _ in bucket.chunks[keeper].segments.tolist():
        yield bucket.variables[tensor].index, start, start + length, offset
        offset += length


def _shares(saved: int, size: int, taker: int | None, scale: float) -> dict[int, float]:
    """By place that was saved, the factor with which `taker` of `size` takes over its residuals.

    Of more takers than places several share one's, of fewer each takes over several's.
    """
    if taker is None:
        return {}
    if size <= saved:
        return {old: scale for old in range(taker, saved, size)}
    old = taker % saved
    return {old: scale / len(range(old, size, saved))}


def _share_of_rest(reducer: Reducer, average: bool, each_its_own: bool) -> float:
    """By how much a second residual that no chunk takes has to grow to become a first one."""
    if reducer.keeper is None and not each_its_own:
        return 0.0
    grown = reducer.plan.world_size if average else 1.0
    return grown if each_its_own else grown / reducer.plan.exchanging


def _share(
    v: VariableSpec, shares: Mapping[int, float], saved: Mapping[int, np.ndarray | None]
) -> np.ndarray:
    """float64 of the variable's shape: this rank's share of what each rank saved."""
    total = None
    for old, share in shares.items():
        values = saved.get(old)
        if values is not None:
            part = share * values.astype(np.float64)
            total = part if total is None else total + part  # 0 + −0 would lose the sign
    return np.zeros(v.shape, np.float64) if total is None else total


def _second(
    v: VariableSpec, pieces: list[tuple[Arrays, dict[int, list[tuple[int, str]]]]]
) -> np.ndarray | None:
    """float32 [numel]: all ranks' second residuals put together; None where there is none."""
    whole = None
    for archive, found in pieces:
        for start, name in found.get(v.index, ()):
            if whole is None:
                whole = np.zeros(v.numel, np.float32)
            values = archive[name]
            whole[start : start + values.size] = values
    return whole


def _give_chunk(reducer: Reducer, bucket: Bucket, second: dict[int, np.ndarray | None]) -> None:
    """Gives the rank's chunk its part of the second residuals, and takes it out of `second`."""
    chunk = np.zeros(reducer.chunk_residuals[bucket.index].shape, np.float32)
    for index, start, stop, offset in _segments(bucket, reducer.keeper):
        values = second[index]
        if values is not None:
            chunk[offset : offset + stop - start] = values[start:stop]
            values[start:stop] = 0
    reducer.chunk_residuals[bucket.index].assign(chunk)


def _assign(reducer: Reducer, index: int, residual: np.ndarray) -> None:
    if index in reducer.residuals:
        reducer.residuals[index].assign(residual)
    elif index in reducer.carried or residual.any():
        reducer.carry(index, residual)


def compare(reducer: Reducer, saved: dict[str, Any]) -> None:
    """Checks that what `describe` told is of the reducer's variables and operation.

    Raises:
      StateError: it is not.
    """
    variables = reducer.plan.variables
    if len(saved["variables"]) != len(variables):
        raise StateError(
            f"the saved state is of {len(saved['variables'])} variables and {reducer.name} has "
            f"{len(variables)}: it belongs to another model"
        )
    operation = {True: "Average", False: "Sum"}
    if saved["average"] != reducer.average and not reducer.alone:
        raise StateError(
            f"{reducer.name} was saved with op={operation[saved['average']]} and now has "
            f"op={operation[reducer.average]}, which gives residuals another meaning; use the same"
        )
    renamed = []
    for v, old in zip(variables, saved["variables"], strict=True):
        if tuple(old["shape"]) != v.shape:
            raise StateError(
                f"variable {v.index} of {reducer.name} was saved as {old['path']} with shape "
                f"{tuple(old['shape'])}, and now is {v.path} with shape {v.shape}"
            )
        if old["path"] != v.path:
            renamed.append(f"{old['path']} is now {v.path}")
    if renamed:
        warnings.warn(
            f"variables of {reducer.name} are restored by their position; {len(renamed)} have "
            f"another path than when they were saved: {'; '.join(renamed[:3])}",
            stacklevel=3,
        )
