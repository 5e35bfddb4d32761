"""`gc.all_reduce`: tensors that belong to no variable, in whatever engine the program runs."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import keras
import tensorflow as tf

from gradcomp import live
from gradcomp.codecs.base import Codec
from gradcomp.collective import Collective, alone
from gradcomp.distribute.reducers import ReplicaReducers
from gradcomp.distribute.replicas import refuse_strategy, replica_reducers, unique_name
from gradcomp.options import Options
from gradcomp.plan import Plan
from gradcomp.policy import Policy
from gradcomp.reducer import Reducer
from gradcomp.tensors import FeedbackState, is_sliced, operation_name, plan_of, warn_biased
from gradcomp.warmup import Warmup, schedule

Owner = Reducer | ReplicaReducers


@tf.autograph.experimental.do_not_convert  # nothing in it depends on a tensor's value
def all_reduce(
    tensors: Any,
    compression: Policy | Codec | str | None = None,
    *,
    state: FeedbackState | None = None,
    average: bool = True,
    seed: int = 0,
) -> Any:
    """The mean, or sum, of tensors over all replicas or ranks, compressed.

    Call it in a replica of a `tf.distribute` strategy or on every Horovod rank. In one process
    alone it returns what it is given.

    Args:
      tensors: a tensor, array or variable, or a structure of them, of static shapes. One payload
        holds those of one codec.
      compression: codec, spec, `Policy` (rules go by `tensor_0`, `tensor_1`, …), or None.
      state: keeps what a lossy codec drops, for the next call with the same tensors.
      average: mean if True, else sum.
      seed: of the random bits of stochastic rounding; equal on all ranks.

    Returns:
      The structure of `tensors`, bit-identical on all ranks.

    Raises:
      TypeError, ValueError: a tensor that can't be compressed so, or a state of other tensors.
      MismatchError: ranks disagree about codecs or shapes.
    """
    chosen = schedule(compression)
    if isinstance(chosen, Warmup):
        raise ValueError(
            "all_reduce knows of no epochs that a Warmup could follow: pass the codec of the epoch "
            "that it is, each with a FeedbackState of its own"
        )
    one_codec = chosen.default if not isinstance(compression, Policy) else chosen
    flat = [_as_tensor(tensor) for tensor in tf.nest.flatten(tensors)]
    options = Options(average=average, error_feedback=state is not None, seed=seed)
    plan = plan_of(flat, one_codec, None, _size())
    if state is None:
        warn_biased(plan)
    reducer = _owner(plan, options, state, operation_name(flat, None))
    return tf.nest.pack_sequence_as(tensors, reducer.reduce(flat).gradients)


_owners: dict[tuple[int, Plan, Options, str], Owner] = {}


def _owner(plan: Plan, options: Options, state: FeedbackState | None, name: str) -> Owner:
    if state is None:
        key = (id(tf.distribute.get_strategy()), plan, options, name)
        if key not in _owners:
            _owners[key] = _make(plan, options, name)
        return _owners[key]
    if state.reducer is None or state.reducer.retired:
        state.reducer = _make(plan, options, unique_name("all_reduce"))
    elif state.reducer.plan != plan:
        raise ValueError(
            "this FeedbackState belongs to other tensors or another codec; use one FeedbackState "
            f"for each.\nIt was made for:\n{state.reducer.plan}\nand is used for:\n{plan}"
        )
    owner: Owner = state.reducer
    return owner


def _make(plan: Plan, options: Options, name: str) -> Owner:
    def make(collective: Collective, key: str) -> Reducer:
        return Reducer(
            plan,
            collective,
            average=options.average,
            error_feedback=bool(options.error_feedback),
            seed=options.seed,
            name=name,
            key=key,
        )

    if tf.distribute.has_strategy() and plan.world_size > 1:
        return replica_reducers(make, name)
    return make(alone() if tf.distribute.has_strategy() else _launched(), name)


def _size() -> int:
    if tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
        refuse_strategy(strategy)
        return int(strategy.num_replicas_in_sync)
    return _launched().size


def _launched() -> Collective:
    if "horovod.tensorflow" in sys.modules:
        importlib.import_module("gradcomp.horovod")  # tells `live` how to reach the ranks
    return live.launched() or alone()


def _as_tensor(value: Any) -> Any:
    value = value.value if isinstance(value, keras.Variable) else value
    return value if is_sliced(value) else tf.convert_to_tensor(value)
