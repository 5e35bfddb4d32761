"""The replicas of several workers, as a carrier of bytes: TensorFlow's collective operations.

Payloads are bytes, which collectives do not take, and travel as int32. They are reshaped and cut as
bytes: most of TensorFlow's ops on int32 take them from a GPU to the host. Keys are gradcomp's own
and derive from the operation, its name and shape: workers that trace a step a different number of
times still pair up. An operation that fails leaves all later ones of the
process failing, TensorFlow's own too; it has to be started again.
"""

from __future__ import annotations

import itertools
import pickle
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradcomp.collective import timed
from gradcomp.distribute import lost
from gradcomp.distribute.engine import engine_of

TIMEOUT_S = 600.0  # a worker may trace or save for long; one that is gone is noticed sooner

# Of the groups of all replicas and of all workers; TensorFlow counts its own up from 1.
_REPLICAS_GROUP, _WORKERS_GROUP = 0x67630001, 0x67630002
_FIRST_KEY = 100  # TensorFlow's own instances begin at 100 too, in groups of their own


class WorkersCollective:
    """One replica of a `MultiWorkerMirroredStrategy`.

    `all_reduce` and `all_gather_rows` are called in the replica's own context. TensorFlow's own
    collectives, which they use, fail in a branch of a graph.
    """

    in_branches = False

    def __init__(self, strategy: tf.distribute.Strategy, rank: int) -> None:
        self.rank = rank
        self.size = strategy.num_replicas_in_sync
        self.local = len(strategy.extended.worker_devices)
        self.engine = engine_of(strategy)

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], *, average: bool, name: str
    ) -> list[tf.Tensor]:
        operation = tf.distribute.ReduceOp.MEAN if average else tf.distribute.ReduceOp.SUM
        context = tf.distribute.get_replica_context()
        return list(context.all_reduce(operation, list(tensors), _options()))

    def all_gather(self, payload: tf.Tensor, *, sizes: Sequence[int], name: str) -> tf.Tensor:
        longest = max(sizes)
        words = _to_words(_pad(payload, longest))
        parts = _to_bytes(_gather(words, self.size, _REPLICAS_GROUP, name))
        parts = tf.reshape(parts, [self.size, -1])
        if all(size == parts.shape[1] for size in sizes):
            return tf.reshape(parts, [-1])
        return tf.concat([parts[rank, :size] for rank, size in enumerate(sizes)], 0)

    def all_to_all(
        self, payload: tf.Tensor, *, splits: Sequence[int] | tf.Tensor, name: str
    ) -> tf.Tensor:
        assert not tf.is_tensor(splits)  # splits differ by step in branches only
        longest, ends = max(splits), list(itertools.accumulate(splits))
        # No tf.split, which has no kernel for bytes on GPUs.
        parts = [payload[end - size : end] for size, end in zip(splits, ends, strict=True)]
        words = _to_words(tf.concat([_pad(part, longest) for part in parts], 0), self.size)
        received = tf.raw_ops.CollectiveAllToAllV2(
            input=words, **_group("all_to_all", name, words, self.size, _REPLICAS_GROUP)
        )
        received = tf.reshape(_to_bytes(received), [self.size, -1])
        return tf.reshape(received[:, : splits[self.rank]], [self.size * splits[self.rank]])

    def broadcast(self, payload: tf.Tensor, *, name: str) -> tf.Tensor:
        size = payload.shape[0]
        return self.all_gather(payload, sizes=[size] * self.size, name=name)[:size]

    def all_gather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        if tensor.dtype.size >= 4:
            return context.all_gather(tensor, 0, _options())
        # Narrower than what collectives take: as bytes, padded, and cut where each replica's end.
        rows = tf.shape(tensor)[:1]
        counts = tf.reshape(_gather(rows, self.size, _REPLICAS_GROUP, f"{name}.rows"), [-1])
        flat = tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])
        width = (tensor.shape[1:].num_elements() or 1) * tensor.dtype.size
        padded = tf.pad(flat, [[0, -tf.size(flat) % 4]])
        gathered = _to_bytes(context.all_gather(_to_words(padded), 0, _options()))
        parts, start = [], tf.constant(0)
        for rank in range(self.size):
            length = counts[rank] * width
            parts.append(gathered[start : start + length])
            start += length + -length % 4
        together = tf.concat(parts, 0)
        if tensor.dtype.size > 1:
            together = tf.bitcast(tf.reshape(together, [-1, tensor.dtype.size]), tensor.dtype)
        return tf.reshape(together, [-1, *tensor.shape[1:]])

    def all_gather_object(self, value: Any, *, name: str) -> list[Any]:
        objects = _gather_objects(value, self.size // self.local, name)
        return [one for one in objects for _ in range(self.local)]

    def exchange_time(self, payload: int, *, name: str) -> float:
        words = tf.zeros([self.local * payload // 4], tf.int32)
        workers = self.size // self.local
        with lost.told():
            return timed(lambda: _gather(words, workers, _WORKERS_GROUP, name).numpy())


class Workers(WorkersCollective):
    """The workers themselves, whatever replicas they have: for what each of them does once."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        super().__init__(strategy, strategy.cluster_resolver.task_id)
        self.size //= self.local
        self.local = 1


def _gather_objects(value: Any, workers: int, name: str) -> list[Any]:
    with lost.told():
        return _gathered(value, workers, name)


def _gathered(value: Any, workers: int, name: str) -> list[Any]:
    content = tf.constant(np.frombuffer(pickle.dumps(value), np.uint8))
    length = tf.constant([content.shape[0]], tf.int32)
    lengths = _gather(length, workers, _WORKERS_GROUP, f"{name}.length").numpy()
    padded = _to_words(_pad(content, int(lengths.max())))
    gathered = _to_bytes(_gather(padded, workers, _WORKERS_GROUP, name)).numpy()
    rows = gathered.reshape(workers, -1)
    return [pickle.loads(r[:n].tobytes()) for r, n in zip(rows, lengths, strict=True)]


def _gather(words: tf.Tensor, size: int, group: int, name: str) -> tf.Tensor:
    return tf.raw_ops.CollectiveGatherV2(
        input=words, **_group("all_gather", name, words, size, group)
    )


def _options() -> tf.distribute.experimental.CommunicationOptions:
    """For TensorFlow's own collectives, which wait for ever without."""
    return tf.distribute.experimental.CommunicationOptions(timeout_seconds=TIMEOUT_S)


def _group(operation: str, name: str, words: tf.Tensor, size: int, group: int) -> dict[str, Any]:
    told = repr((operation, name, tuple(words.shape), words.dtype.name))
    return {
        "group_size": size,
        "group_key": group,
        "instance_key": (zlib.crc32(told.encode()) & 0x3FFFFFFF) + _FIRST_KEY,
        "ordering_token": [],
        "communication_hint": "auto",
        "timeout_seconds": TIMEOUT_S,
    }


def _pad(payload: tf.Tensor, length: int) -> tf.Tensor:
    """With zeros to `length` bytes, and to a multiple of 4: collectives take no single bytes."""
    length += -length % 4
    return tf.pad(payload, [[0, length - payload.shape[0]]])


def _to_words(payload: tf.Tensor, *rows: int) -> tf.Tensor:
    return tf.bitcast(tf.reshape(payload, [*rows, -1, 4]), tf.int32)


def _to_bytes(words: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.bitcast(words, tf.uint8), [-1])
