"""Horovod as the carrier of bytes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from gradcomp import live, succession
from gradcomp.options import Options
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer


class HorovodCollective:
    """All ranks of the running Horovod job.

    Horovod pairs up operations by name. Names carry the shape and dtype, so that an operation of
    another size can never be taken for this one.
    """

    def __init__(self) -> None:
        if not hvd.is_initialized():
            raise RuntimeError(
                "Horovod is not initialized: call `hvd.init()` at the start of the program"
            )
        self.rank = hvd.rank()
        self.size = hvd.size()

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], *, average: bool, name: str
    ) -> list[tf.Tensor]:
        static = all(t.shape.is_fully_defined() for t in tensors)
        numel = sum(t.shape.num_elements() for t in tensors) if static else "dynamic"
        # A group is one collective of fixed layout; single tensors would be fused as they happen to
        # arrive, and from three ranks on the order of a ring's additions depends on the layout.
        return hvd.grouped_allreduce(
            list(tensors),
            op=hvd.Average if average else hvd.Sum,
            name=f"{name}.{tensors[0].dtype.name}.{numel}",
            ignore_name_scope=True,
        )

    def all_gather(self, payload: tf.Tensor, *, sizes: Sequence[int], name: str) -> tf.Tensor:
        total = sum(sizes)
        gathered = hvd.allgather(payload, name=f"{name}.uint8.{total}", ignore_name_scope=True)
        return tf.ensure_shape(gathered, [total])

    def all_to_all(
        self, payload: tf.Tensor, *, splits: Sequence[int] | tf.Tensor, name: str
    ) -> tf.Tensor:
        static = not tf.is_tensor(splits)
        received, _ = hvd.alltoall(
            payload,
            splits=tf.cast(splits, tf.int32),
            name=f"{name}.uint8.{sum(splits) if static else 'dynamic'}",
            ignore_name_scope=True,
        )
        return tf.ensure_shape(received, [self.size * splits[self.rank] if static else None])

    def all_gather_rows(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        return hvd.allgather(tensor, name=f"{name}.{tensor.dtype.name}", ignore_name_scope=True)

    def all_gather_object(self, value: Any, *, name: str) -> list[Any]:
        return hvd.allgather_object(value, name=name)


live.set_world(lambda: HorovodCollective() if hvd.is_initialized() else None)
live.late = os.environ.get("HOROVOD_ELASTIC") == "1"  # what Horovod's launchers set

_ordinals = {kind: itertools.count() for kind in ("optimizer", "tape", "allreduce")}


def unique_name(kind: str) -> str:
    """A prefix for one reducer's operations: ranks that run the same program get the same one."""
    return f"gradcomp.{kind}{next(_ordinals[kind])}"


def retire_all() -> None:
    """Ends all reducers, since other ranks exchange from now on; names are counted anew.

    A process that has just come counts from the start, and has to arrive at the same names.
    """
    succession.retire_all()
    for kind in _ordinals:
        _ordinals[kind] = itertools.count()


def make_reducer(plan: Plan, options: Options, name: str, before: Reducer | None = None) -> Reducer:
    """A reducer over all ranks of the running Horovod job; shakes hands with them.

    It goes on with what `before` kept, which exchanged the same gradients among other ranks.
    """
    reducer = Reducer(
        plan,
        HorovodCollective(),
        average=options.average,
        error_feedback=bool(options.error_feedback),
        momentum=options.momentum,
        seed=options.seed,
        name=name,
    )
    succession.succeed(reducer, before)
    return reducer
