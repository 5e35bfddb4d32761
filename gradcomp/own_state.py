"""A process's residuals inside Keras's files and TensorFlow's checkpoints of its optimizer.

Such a file holds what one process has: one rank, or the replicas of a strategy that live in it.
`gradcomp.save_state` keeps what all ranks have.
"""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from gradcomp import live, residuals
from gradcomp.archive import Archive, write_archive
from gradcomp.reducer import Reducer

_KEY = "gradcomp"


class Owner(Protocol):
    """A reducer, or the reducers of several replicas."""

    @property
    def local(self) -> list[Reducer]:
        """The reducers that live in this process."""
        ...

    def share(self, content: bytes) -> list[bytes]:
        """`content` of every process that writes into the same checkpoint; of this one at least."""
        ...


class OwnState(tf.train.experimental.PythonState):
    """What a checkpoint keeps of a reducer.

    Not the variables themselves: on another rank, or with another number of ranks, they have to be
    left alone or shared out, and the second phase's have other shapes.
    """

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner

    def serialize(self) -> bytes:
        # A SavedModel is written from within a graph, where variables have no value yet.
        with tf.__internal__.eager_context.eager_mode():
            return to_bytes(self._owner)

    def deserialize(self, string_value: bytes) -> None:
        from_bytes(self._owner, string_value)


def save_own(owner: Owner, store: Any) -> None:
    """Adds the rank's state to what Keras stores for an optimizer."""
    store[_KEY] = np.frombuffer(to_bytes(owner), np.uint8)


def load_own(owner: Owner | None, store: Any) -> None:
    """Takes the rank's state from what Keras stored for an optimizer, where there is any."""
    if _KEY in store.keys():  # noqa: SIM118  (not every store of Keras is a mapping)
        from_bytes(owner, np.asarray(store[_KEY]).tobytes())


def without_own(store: Any) -> dict[str, Any]:
    """What Keras itself stored: it counts the entries."""
    return {key: store[key] for key in store.keys() if key != _KEY}  # noqa: SIM118


def to_bytes(owner: Owner) -> bytes:
    """One process's state; `from_bytes` in any process knows what to do with it.

    Where the engine's workers write checkpoints together, it is the state of all of them.
    """
    stream = io.BytesIO()
    members = [residuals.describe(reducer) for reducer in owner.local]
    arrays = [residuals.arrays_of(reducer, _prefix(i)) for i, reducer in enumerate(owner.local)]
    write_archive(stream, {"members": members}, itertools.chain.from_iterable(arrays))
    parts = owner.share(stream.getvalue())
    if len(parts) == 1:
        return parts[0]
    together = io.BytesIO()
    contents = ((str(i), np.frombuffer(part, np.uint8)) for i, part in enumerate(parts))
    write_archive(together, {"parts": len(parts)}, contents)
    return together.getvalue()


def from_bytes(owner: Owner | None, content: bytes) -> None:
    """Restores the state that `to_bytes` made; warns where it is not this process's own.

    Where workers come and go nothing is restored: one that comes late would read the same again.

    Raises:
      StateError: it is of other variables, or damaged.
    """
    if live.late or owner is None:
        warnings.warn(
            "the residuals in a checkpoint or a .keras file are not restored in an elastic job; "
            "gradcomp.restore_state, called once, restores those that gradcomp.save_state saved",
            stacklevel=2,
        )
        return
    name = owner.local[0].name
    found = _snapshots(Archive(io.BytesIO(content), f"the checkpoint of {name}"))
    _compare(owner, found)
    for reducer in owner.local:
        residuals.restore_found(reducer, found)


def _snapshots(archive: Archive) -> dict[int, residuals.Snapshot]:
    """All that is in it, by rank."""
    found: dict[int, residuals.Snapshot] = {}
    for part in range(archive.metadata.get("parts", 0)):
        found |= _snapshots(Archive(io.BytesIO(archive[str(part)].tobytes()), archive.name))
    for number, member in enumerate(archive.metadata.get("members", ())):
        found[int(member["rank"])] = residuals.Snapshot(member, archive, _prefix(number))
    return found


def _compare(owner: Owner, found: dict[int, residuals.Snapshot]) -> None:
    """Warns of what is not in `found`, or belongs to others."""
    saved_size = next(iter(found.values())).world_size
    size = owner.local[0].plan.world_size
    if len(found) == saved_size:  # all there is
        return
    saved = _whose(found, saved_size)
    ranks = [reducer.rank for reducer in owner.local]
    here = _whose(ranks, size)
    remedy = "gradcomp.save_state and restore_state keep those of all ranks"
    if saved_size != size:
        warnings.warn(
            f"the checkpoint holds the residuals of {saved}, and this is {here}: ranks share what "
            f"that rank had; what the others had is lost. {remedy}",
            stacklevel=3,
        )
    elif not set(ranks) <= found.keys():
        warnings.warn(
            f"the checkpoint holds the residuals of {saved}, and this is {here}, which starts with "
            f"none. {remedy}",
            stacklevel=3,
        )


def _whose(ranks: Iterable[int], size: int) -> str:
    told = ", ".join(map(str, ranks))
    return f"rank{'s' if ',' in told else ''} {told} of {size}"


def _prefix(member: int) -> str:
    return f"{member}/"
