"""The replicas of one process, as a carrier of bytes: payloads are copied from device to device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradcomp.collective import timed
from gradcomp.distribute.engine import engine_of

Replicas = list[Any]  # one value a replica


class MirroredCollective:
    """One replica of a strategy that lives in this process.

    All methods but `all_gather_object` are called in the replica's own context. They let replicas
    meet, which they can't in a branch of a graph.
    """

    in_branches = False

    def __init__(self, strategy: tf.distribute.Strategy, rank: int) -> None:
        self.rank = rank
        self.size = strategy.num_replicas_in_sync
        self.engine = engine_of(strategy)
        self._devices = strategy.extended.worker_devices
        self.local = self.size

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], *, average: bool, name: str
    ) -> list[tf.Tensor]:
        operation = tf.distribute.ReduceOp.MEAN if average else tf.distribute.ReduceOp.SUM
        return list(tf.distribute.get_replica_context().all_reduce(operation, list(tensors)))

    def all_gather(self, payload: tf.Tensor, *, sizes: Sequence[int], name: str) -> tf.Tensor:
        gathered = self._share(payload, lambda payloads, _: tf.concat(payloads, 0))
        return tf.ensure_shape(gathered, [sum(sizes)])

    def all_to_all(
        self, payload: tf.Tensor, *, splits: Sequence[int] | tf.Tensor, name: str
    ) -> tf.Tensor:
        assert not tf.is_tensor(splits)  # splits differ by step in branches only

        def parts_for(payloads: Replicas, rank: int) -> tf.Tensor:
            start = sum(splits[:rank])
            parts = []
            for device, other in zip(self._devices, payloads, strict=True):
                with tf.device(device):  # cut where it is, so that only the part is copied
                    parts.append(other[start : start + splits[rank]])
            return tf.concat(parts, 0)

        received = self._share(payload, parts_for)
        return tf.ensure_shape(received, [self.size * splits[self.rank]])

    def broadcast(self, payload: tf.Tensor, *, name: str) -> tf.Tensor:
        return self._share(payload, lambda payloads, _: tf.identity(payloads[0]))

    def all_gather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return self._share(tensor, lambda tensors, _: tf.concat(tensors, 0))

    def all_gather_object(self, value: Any, *, name: str) -> list[Any]:
        return [value] * self.size  # one program describes all replicas

    def exchange_time(self, payload: int, *, name: str) -> float:
        contents = []
        for device in self._devices:
            with tf.device(device):
                contents.append(tf.zeros([payload], tf.uint8) + 0)

        def exchange() -> None:
            gathered = []
            for device in self._devices:
                with tf.device(device):
                    gathered.append(tf.concat(contents, 0))
            for one in gathered:
                one[:1].numpy()  # it is there

        return timed(exchange)

    def _share(self, tensor: tf.Tensor, combine: Callable[[Replicas, int], tf.Tensor]) -> tf.Tensor:
        """`combine(all replicas' tensors, rank)`, on each replica's device."""

        def cross(strategy: tf.distribute.Strategy, tensor: Any) -> Any:
            tensors = list(strategy.experimental_local_results(tensor))
            results = []
            for rank, device in enumerate(self._devices):
                with tf.device(device):
                    results.append(combine(tensors, rank))
            return strategy.experimental_distribute_values_from_function(
                lambda context: results[context.replica_id_in_sync_group]
            )

        return tf.distribute.get_replica_context().merge_call(cross, args=(tensor,))
