"""A rank's residuals inside Keras's files and TensorFlow's checkpoints of its optimizer.

Such a file holds what one rank has. `gradcomp.save_state` keeps what all ranks have.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from gradcomp import live, residuals
from gradcomp.archive import Archive, write_archive
from gradcomp.reducer import Reducer

_KEY = "gradcomp"


class OwnState(tf.train.experimental.PythonState):
    """What a checkpoint keeps of a reducer.

    Not the variables themselves: on another rank, or with another number of ranks, they have to be
    left alone or shared out, and the second phase's have other shapes.
    """

    def __init__(self, reducer: Reducer) -> None:
        super().__init__()
        self._reducer = reducer

    def serialize(self) -> bytes:
        # A SavedModel is written from within a graph, where variables have no value yet.
        with tf.__internal__.eager_context.eager_mode():
            return to_bytes(self._reducer)

    def deserialize(self, string_value: bytes) -> None:
        from_bytes(self._reducer, string_value)


def save_own(reducer: Reducer, store: Any) -> None:
    """Adds the rank's state to what Keras stores for an optimizer."""
    store[_KEY] = np.frombuffer(to_bytes(reducer), np.uint8)


def load_own(reducer: Reducer | None, store: Any) -> None:
    """Takes the rank's state from what Keras stored for an optimizer, where there is any."""
    if _KEY in store.keys():  # noqa: SIM118  (not every store of Keras is a mapping)
        from_bytes(reducer, np.asarray(store[_KEY]).tobytes())


def without_own(store: Any) -> dict[str, Any]:
    """What Keras itself stored: it counts the entries."""
    return {key: store[key] for key in store.keys() if key != _KEY}  # noqa: SIM118


def to_bytes(reducer: Reducer) -> bytes:
    """One rank's state; `from_bytes` on any rank knows what to do with it."""
    stream = io.BytesIO()
    write_archive(stream, residuals.describe(reducer), residuals.arrays_of(reducer, ""))
    return stream.getvalue()


def from_bytes(reducer: Reducer | None, content: bytes) -> None:
    """Restores the state that `to_bytes` made; warns where it is not this rank's own.

    Where workers come and go nothing is restored: one that comes late would read the same again.

    Raises:
      StateError: it is of other variables, or damaged.
    """
    if live.late or reducer is None:
        warnings.warn(
            "the residuals in a checkpoint or a .keras file are not restored in an elastic job; "
            "gradcomp.restore_state, called once, restores those that gradcomp.save_state saved",
            stacklevel=2,
        )
        return
    archive = Archive(io.BytesIO(content), f"the checkpoint of {reducer.name}")
    snapshot = residuals.Snapshot(archive.metadata, archive, "")
    saved = f"rank {archive.metadata['rank']} of {snapshot.world_size}"
    here = f"rank {reducer.rank} of {reducer.plan.world_size}"
    remedy = "gradcomp.save_state and restore_state keep those of all ranks"
    if snapshot.world_size != reducer.plan.world_size:
        warnings.warn(
            f"the checkpoint holds the residuals of {saved}, and this is {here}: ranks share what "
            f"that rank had; what the others had is lost. {remedy}",
            stacklevel=2,
        )
    elif saved != here:
        warnings.warn(
            f"the checkpoint holds the residuals of {saved}, and this is {here}, which starts with "
            f"none. {remedy}",
            stacklevel=2,
        )
    rank = int(archive.metadata["rank"])
    residuals.restore(reducer, {rank: snapshot}, each_its_own=saved == here)
