"""`hvd.init`, `hvd.allreduce` and their relatives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from gradcomp.horovod.arguments import (
    Compression,
    as_average,
    as_compression,
    as_op,
    as_ranks,
    refuse_unsupported,
    refuse_warmup,
)
from gradcomp.horovod.collective import make_reducer, unique_name
from gradcomp.horovod.groups import known_process_set
from gradcomp.options import Options
from gradcomp.plan import Plan
from gradcomp.reducer import Reducer
from gradcomp.tensors import FeedbackState, is_sliced, operation_name, plan_of, warn_biased

__all__ = [
    "Compression",
    "FeedbackState",
    "allreduce",
    "grouped_allreduce",
    "init",
    "unwrap",
]


def init(*args: Any, **kwargs: Any) -> None:
    """`horovod.tensorflow.init`, with a fusion of dense tensors that gives the same sums each run.

    From three ranks on, the order in which a ring adds depends on where a tensor lies in Horovod's
    fusion buffer, and groups that share the buffer lie where chance has it. So groups don't share
    it, unless HOROVOD_DISABLE_GROUP_FUSION says otherwise.
    """
    os.environ.setdefault("HOROVOD_DISABLE_GROUP_FUSION", "1")
    hvd.init(*args, **kwargs)


def unwrap(variable: Any) -> Any:
    """The `tf.Variable` inside a Keras variable; anything else as it is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def as_tensor(value: Any) -> Any:
    """What Horovod takes: Keras variables are unwrapped, arrays and numbers become tensors."""
    value = unwrap(value)
    if isinstance(value, tf.Tensor | tf.Variable | tf.IndexedSlices):
        return value
    return tf.convert_to_tensor(value)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = hvd.global_process_set,
    ignore_name_scope: bool = False,
    *,
    state: FeedbackState | None = None,
    seed: int = 0,
) -> Any:
    """The mean, or sum, of a tensor over all Horovod ranks.

    Args:
      tensor: float32, float16 or bfloat16 of static shape if compressed, or `tf.IndexedSlices` with
        a static `dense_shape`; otherwise anything that Horovod's own `allreduce` takes, which then
        does the work.
      average: older way to say `op`.
      compression: codec, spec, `Policy` (the tensor's name decides), or None.
      op: `hvd.Average` (default) or `hvd.Sum`; uncompressed, all of Horovod's.
      name: of the operation; equal on all ranks.
      process_set: the ranks that take part, this one among them.
      state: keeps what a lossy codec drops, for the next call. Without it that is lost.
      seed: of the random bits of stochastic rounding; equal on all ranks.
      device_dense, device_sparse, prescale_factor, postscale_factor, ignore_name_scope: as in
        Horovod; uncompressed only.

    Returns:
      A tensor of the same shape and dtype, bit-identical on all ranks. Of compressed slices, slices
      with every row that any rank has, once, ascending.
    """
    op = as_op(op, average)
    as_ranks(process_set)  # Horovod's own error about one that it does not know says nothing
    others = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "ignore_name_scope": ignore_name_scope,
    }
    if as_compression(compression) is None and state is None:
        return hvd.allreduce(as_tensor(tensor), op=op, name=name, process_set=process_set, **others)
    return grouped_allreduce(
        [tensor],
        compression=compression,
        op=op,
        name=name,
        process_set=process_set,
        state=state,
        seed=seed,
        **others,
    )[0]


@tf.autograph.experimental.do_not_convert  # nothing in it depends on a tensor's value
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = hvd.global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
    *,
    state: FeedbackState | None = None,
    seed: int = 0,
) -> list[Any]:
    """`allreduce` of several tensors at once: one payload for all of them."""
    chosen, op = refuse_warmup(as_compression(compression)), as_op(op, average)
    ranks = as_ranks(process_set)
    tensors = [as_tensor(tensor) for tensor in tensors]
    others = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "ignore_name_scope": ignore_name_scope,
    }
    if chosen is None and state is None:
        return hvd.grouped_allreduce(tensors, op=op, name=name, process_set=process_set, **others)
    refuse_unsupported("allreduce", **others)
    options = Options(
        average=as_average(op),
        error_feedback=state is not None,
        seed=seed,
        process_set=ranks,
    )
    if not process_set.included():
        raise ValueError(
            f"rank {hvd.rank()} is not in the process set of ranks {process_set.ranks}: call "
            "allreduce on its members only"
        )
    tensors = [t if is_sliced(t) else tf.convert_to_tensor(t) for t in tensors]
    plan = plan_of(tensors, chosen, name, process_set.size())
    if state is None:
        warn_biased(plan)
    reducer = _reducer(plan, options, state, operation_name(tensors, name))
    return reducer.reduce(tensors).gradients


_reducers: dict[tuple[Plan, Options, str], Reducer] = {}


def _reducer(plan: Plan, options: Options, state: FeedbackState | None, name: str) -> Reducer:
    if state is None:
        key = (plan, options, name)
        if key not in _reducers or _reducers[key].retired:
            _reducers[key] = make_reducer(plan, options, name)
        return _reducers[key]
    if state.reducer is None or state.reducer.retired:
        own_name = unique_name("allreduce", known_process_set(options.process_set))
        state.reducer = make_reducer(plan, options, own_name, state.reducer)
    elif state.reducer.plan != plan:
        raise ValueError(
            "this FeedbackState belongs to other tensors or another codec; use one FeedbackState "
            f"for each.\nIt was made for:\n{state.reducer.plan}\nand is used for:\n{plan}"
        )
    return state.reducer
