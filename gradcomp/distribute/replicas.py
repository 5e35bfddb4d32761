"""Reducers for the strategy, if any, in whose scope a program is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from gradcomp import live
from gradcomp.collective import Collective, alone
from gradcomp.distribute.mirrored import MirroredCollective
from gradcomp.distribute.reducers import ReplicaReducers
from gradcomp.distribute.workers import Workers, WorkersCollective
from gradcomp.options import Options
from gradcomp.reducer import Reducer
from gradcomp.warmup import Warmup

_ordinals = itertools.count()


def unique_name() -> str:
    """A prefix for one reducer's operations: workers that run the same program get the same one."""
    return f"gradcomp.optimizer{next(_ordinals)}"


def reducers_of_strategy(
    variables: Sequence[Any], options: Options, name: str
) -> Reducer | ReplicaReducers:
    """One reducer for each replica of this process; a single replica's exchanges nothing.

    Gradients are summed, since Keras has divided the loss by the number of replicas.

    Raises:
      TypeError: a strategy whose replicas can't exchange payloads.
      ValueError: a warm-up, whose stages are branches of a graph, in which replicas can't meet.
    """
    strategy = tf.distribute.get_strategy()
    if isinstance(options.policy, Warmup):
        raise ValueError(
            "gc.Warmup can't be used under a tf.distribute strategy, in whose branches replicas "
            "can't exchange anything: use the codec itself, or Horovod"
        )
    size = strategy.num_replicas_in_sync
    if size == 1 and not isinstance(strategy, _REFUSED):
        return make_reducer(alone(), variables, options, False, name)
    local = len(strategy.extended.worker_devices)
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        first = strategy.cluster_resolver.task_id * local
        live.workers = Workers(strategy)

        def make(rank: int) -> Reducer:
            return make_reducer(WorkersCollective(strategy, rank), variables, options, False, name)

    elif isinstance(strategy, tf.distribute.MirroredStrategy):
        first = 0

        def make(rank: int) -> Reducer:
            return make_reducer(MirroredCollective(strategy, rank), variables, options, False, name)

    else:
        raise TypeError(
            f"gradcomp can't exchange gradients under {type(strategy).__name__}: use "
            "MirroredStrategy, MultiWorkerMirroredStrategy, or Horovod"
        )
    return ReplicaReducers(strategy, make, range(first, first + local))


_REFUSED = (tf.distribute.TPUStrategy, tf.distribute.ParameterServerStrategy)


def make_reducer(
    collective: Collective, variables: Sequence[Any], options: Options, average: bool, name: str
) -> Reducer:
    """One reducer over `collective`; shakes hands."""
    plan = options.policy.plan(variables, collective.size, options.bucket_bytes)
    return Reducer(
        replace(plan, momentum=options.momentum is not None),
        collective,
        average=average,
        error_feedback=bool(options.error_feedback),
        momentum=options.momentum,
        seed=options.seed,
        name=name,
        key=f"{name}.replica{collective.rank}" if collective.size > 1 else name,
    )
