"""Finds out whether ranks still have the same weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from gradcomp import live
from gradcomp.errors import OutOfSyncError
from gradcomp.options import Options


def check_sync(model: Any, *, all_weights: bool = False) -> None:
    """Compares a hash of each weight over all ranks, and raises where they differ.

    All ranks must call it at the same step. It sends 16 bytes and a name a weight.

    Args:
      model: a Keras model, or a sequence of Keras or TensorFlow variables, all of which are
        compared. A model whose optimizer exchanges within a process set is compared on the ranks of
        that set; the others have nothing to compare.
      all_weights: the model's non-trainable weights too. The statistics of a batch normalization
        are among them, which are each rank's own.

    Raises:
      OutOfSyncError: on all ranks, naming the first weight that differs and who has which value.
      RuntimeError: no engine is running.
    """
    variables: Sequence[Any]
    options = getattr(getattr(model, "optimizer", None), "options", None)
    if isinstance(model, keras.Model):
        variables = model.weights if all_weights else model.trainable_weights
    else:
        variables = list(model)
    collective = live.running(options.process_set if isinstance(options, Options) else None)
    if collective is None:
        raise RuntimeError(
            "no engine is running whose ranks could be compared: `import gradcomp.horovod as hvd` "
            "and call `hvd.init()` first"
        )
    if collective.size == 1:
        return
    everyones = collective.all_gather_object(
        [_fingerprint(v) for v in variables], name="gradcomp.check_sync"
    )
    lengths = [len(prints) for prints in everyones]
    if len(set(lengths)) != 1:
        raise OutOfSyncError(f"ranks have different numbers of weights: {lengths}")
    rows = list(enumerate(zip(*everyones, strict=True)))
    differing = [(i, row) for i, row in rows if len({fingerprint for _, fingerprint in row}) != 1]
    if differing:
        raise OutOfSyncError(_difference(differing, len(rows)))


class CheckSync(keras.callbacks.Callback):
    """Calls `check_sync` on the model after every `every` steps, and when training ends.

    Args:
      every: steps between two checks. One costs a hash of the weights, about a millisecond for a
        million parameters, and one small gather.
      all_weights: as in `check_sync`.
    """

    def __init__(self, every: int = 100, *, all_weights: bool = False) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"every must be at least 1 step, got {every}")
        self.every = every
        self.all_weights = all_weights
        self._since = 0
        self._last_batch = -1

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._last_batch = -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # With steps_per_execution, Keras calls this once for several batches.
        self._since += batch - self._last_batch
        self._last_batch = batch
        if self._since >= self.every:
            self._since = 0
            check_sync(self.model, all_weights=self.all_weights)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        check_sync(self.model, all_weights=self.all_weights)


def _fingerprint(variable: Any) -> tuple[str, bytes]:
    value = np.ascontiguousarray(keras.ops.convert_to_numpy(variable))
    kind = f"{getattr(variable, 'path', variable.name)}, {value.dtype.name} {list(value.shape)}"
    # The bytes of bfloat16, which hashlib does not know.
    content = value.reshape(-1).view(np.uint8).tobytes()
    key = f"{value.dtype.name}{value.shape}".encode()[:64]
    digest = hashlib.blake2b(content, digest_size=16, key=key)
    return kind, digest.digest()


def _difference(differing: list[tuple[int, tuple[tuple[str, bytes], ...]]], total: int) -> str:
    index, row = differing[0]
    holders: dict[bytes, list[int]] = {}
    for rank, (_, fingerprint) in enumerate(row):
        holders.setdefault(fingerprint, []).append(rank)
    groups = " and ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
        for ranks in holders.values()
    )
    return (
        f"{len(differing)} of {total} weights differ between ranks. The first is weight {index} "
        f"({row[0][0]}): {groups} have different values. Start all ranks from the same weights "
        "(hvd.callbacks.BroadcastGlobalVariablesCallback(0) or hvd.broadcast_variables), and "
        "change them on all ranks alike"
    )
