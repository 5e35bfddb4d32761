"""`gc.CompressedAllReduce`: compressed gradients for a strategy, and nothing else changed."""

from __future__ import annotations

import io
import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from gradcomp.archive import Archive, write_archive
from gradcomp.bucket import DEFAULT_BUCKET_BYTES
from gradcomp.codecs.base import Codec
from gradcomp.distribute import applied
from gradcomp.distribute.reducers import ReplicaReducers
from gradcomp.distribute.replicas import reducers_of_strategy, unique_name
from gradcomp.options import Options
from gradcomp.own_state import from_bytes, to_bytes
from gradcomp.policy import Policy
from gradcomp.traffic import Traffic
from gradcomp.warmup import Warmup, schedule


class CompressedAllReduce(tf.distribute.CrossDeviceOps, tf.train.experimental.PythonState):
    """Pass it as `cross_device_ops=` to `MirroredStrategy`; the script stays as it is.

    What a Keras optimizer reduces when it is applied is compressed. All other reductions are exact:
    losses, metrics, batch statistics, and what a program reduces itself. Residuals are kept for
    each optimizer; `tf.train.Checkpoint(reducer=...)` saves them.

    Keras clips each replica's own gradients here, and can't accumulate: `gc.DistributedOptimizer`
    can.

    Args:
      compression: codec, `Policy` without rules, spec such as "topk:density=0.01", or None.
      error_feedback: keep what lossy codecs drop and send it later (arXiv:1901.09847).
      bucket_bytes: gradients are exchanged in buckets of about this many raw bytes.
      seed: of the random bits of stochastic rounding.

    Raises:
      ValueError: the policy has rules, which no path is known for here.
    """

    def __init__(
        self,
        compression: Policy | Codec | str | None = None,
        *,
        error_feedback: bool = True,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        seed: int = 0,
    ) -> None:
        super().__init__()
        policy = schedule(compression)
        if isinstance(policy, Warmup):
            raise ValueError(
                "CompressedAllReduce is told of no epochs that a Warmup could follow: wrap the "
                "optimizer in gc.DistributedOptimizer(opt, warmup)"
            )
        if policy.rules:
            raise ValueError(
                "CompressedAllReduce can't follow rules on paths, since a strategy tells it no "
                "variable's path: wrap the optimizer in gc.DistributedOptimizer(opt, policy)"
            )
        self._options = Options(
            policy=policy, error_feedback=error_feedback, bucket_bytes=bucket_bytes, seed=seed
        )
        self._exact = tf.distribute.ReductionToOneDevice()
        self._reducers: weakref.WeakKeyDictionary[Any, ReplicaReducers] = (
            weakref.WeakKeyDictionary()
        )
        self._restored: list[bytes] = []
        self._exchanging = False
        applied.watch(CompressedAllReduce)

    def batch_reduce_implementation(self, *args: Any) -> Any:
        """Called by the strategy with (operation, pairs of value and destination, options)."""
        operation, pairs = args[0], args[1]
        # The exchange's own dense reductions come by here, too.
        gradients = operation == tf.distribute.ReduceOp.SUM and not self._exchanging
        application = applied.take() if gradients else None
        if application is None:
            return self._exact.batch_reduce_implementation(*args)
        reducers = self._reducers_of(application.optimizer)
        indices = application.indices

        def reduce(gradients: list[Any]) -> list[Any]:
            row: list[Any] = [None] * len(reducers.plan.variables)
            for index, gradient in zip(indices, gradients, strict=True):
                row[index] = gradient
            reduced = reducers.reduce(row).gradients
            return [reduced[index] for index in indices]

        self._exchanging = True
        try:
            strategy = tf.distribute.get_strategy()
            values = [value for value, _ in pairs]
            return strategy.extended.call_for_each_replica(reduce, args=(values,))
        finally:
            self._exchanging = False

    def traffic(self) -> list[Traffic]:
        """Steps and bytes so far of each optimizer, by its first replica."""
        return [reducers.traffic() for reducers in self._reducers.values()]

    def reduce_implementation(self, *args: Any) -> Any:
        return self._exact.reduce_implementation(*args)

    def broadcast_implementation(self, *args: Any) -> Any:
        return self._exact.broadcast_implementation(*args)

    def _gather_implementation(self, *args: Any) -> Any:
        return self._exact._gather_implementation(*args)

    def _reducers_of(self, optimizer: Any) -> ReplicaReducers:
        if optimizer not in self._reducers:
            made = reducers_of_strategy(
                optimizer._trainable_variables, self._options, unique_name("hook")
            )
            assert isinstance(made, ReplicaReducers)  # a single replica reduces nothing
            self._reducers[optimizer] = made
            if self._restored:
                with tf.init_scope():  # not again at each run of the step that is being traced
                    from_bytes(made, self._restored.pop(0))
        return self._reducers[optimizer]

    def serialize(self) -> bytes:
        """The residuals of all optimizers, in the order in which they were first applied."""
        stream = io.BytesIO()
        states = [to_bytes(reducers) for reducers in self._reducers.values()] + self._restored
        arrays = ((str(i), np.frombuffer(state, np.uint8)) for i, state in enumerate(states))
        write_archive(stream, {"optimizers": len(states)}, arrays)
        return stream.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Gives optimizers theirs, those that were not applied yet when they are."""
        archive = Archive(io.BytesIO(string_value), "the checkpoint of CompressedAllReduce")
        states = [archive[str(i)].tobytes() for i in range(archive.metadata["optimizers"])]
        for reducers in self._reducers.values():
            if states:
                from_bytes(reducers, states.pop(0))
        self._restored = states
