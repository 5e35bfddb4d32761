"""Reducers for the strategy, if any, in whose scope a program is."""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from gradcomp import live
from gradcomp.chooser import Chooser
from gradcomp.collective import Collective, alone
from gradcomp.distribute.engine import name_of
from gradcomp.distribute.mirrored import MirroredCollective
from gradcomp.distribute.reducers import ReplicaReducers
from gradcomp.distribute.workers import Workers, WorkersCollective
from gradcomp.options import Options
from gradcomp.reducer import Reducer
from gradcomp.warmup import Warmup

_ordinals: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


def unique_name(kind: str) -> str:
    """A prefix for one reducer's operations: workers that run the same program get the same one."""
    return f"gradcomp.{kind}{next(_ordinals[kind])}"


def reducers_of_strategy(
    variables: Sequence[Any], options: Options, name: str
) -> Reducer | ReplicaReducers:
    """Reducers of gradients for the replicas of this process.

    Gradients are summed, since Keras has divided the loss by the number of replicas.

    Raises:
      TypeError: a strategy whose replicas can't exchange payloads.
      ValueError: a warm-up, whose stages are branches of a graph, in which replicas can't meet.
    """
    if isinstance(options.policy, Warmup):
        raise ValueError(
            "gc.Warmup can't be used under a tf.distribute strategy, in whose branches replicas "
            "can't exchange anything: use the codec itself, or Horovod"
        )
    options = replace(options, average=False)
    first: list[Reducer] = []  # the others of this process choose as it did

    def make(collective: Collective, key: str) -> Reducer:
        chooser = first[0].chooser if first else None
        made = make_reducer(variables, options, name, collective, key, chooser)
        first.append(made)
        return made

    return replica_reducers(make, name)


def replica_reducers(
    make: Callable[[Collective, str], Reducer], name: str
) -> Reducer | ReplicaReducers:
    """One reducer for each replica of this process; a single replica's exchanges nothing.

    Args:
      make: makes one of what carries its bytes, and of the key under which its state is saved.

    Raises:
      TypeError: a strategy whose replicas can't exchange payloads.
    """
    strategy = tf.distribute.get_strategy()
    refuse_strategy(strategy)
    if strategy.num_replicas_in_sync == 1:
        return make(alone(), name)
    warn_mixed(strategy.extended.worker_devices)
    local = len(strategy.extended.worker_devices)
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        first = strategy.cluster_resolver.task_id * local
        engine: Callable[[Any, int], Collective] = WorkersCollective
        live.workers = Workers(strategy)
    else:
        first, engine = 0, MirroredCollective
    return ReplicaReducers(
        strategy,
        lambda rank: make(engine(strategy, rank), f"{name}.replica{rank}"),
        range(first, first + local),
    )


_REFUSED = (tf.distribute.TPUStrategy, tf.distribute.ParameterServerStrategy)
_SERVED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def refuse_strategy(strategy: tf.distribute.Strategy) -> None:
    """Raises under a strategy whose replicas, if it has several, can't exchange payloads.

    Raises:
      TypeError: names the strategies that can be used.
    """
    several = strategy.num_replicas_in_sync > 1
    if isinstance(strategy, _REFUSED) or (several and not isinstance(strategy, _SERVED)):
        raise TypeError(
            f"gradcomp can't exchange gradients under {name_of(strategy)}: use "
            "MirroredStrategy, MultiWorkerMirroredStrategy, or Horovod"
        )


def mixed(devices: Sequence[str]) -> list[str]:
    """The kinds of devices, such as `["CPU", "GPU"]`, where there are several; else empty."""
    kinds = {tf.DeviceSpec.from_string(device).device_type for device in devices}
    return sorted(kinds) if len(kinds) > 1 else []


_said_mixed = False


def warn_mixed(devices: Sequence[str]) -> None:
    """Warns once where replicas are on devices of several kinds."""
    global _said_mixed
    kinds = mixed(devices)
    if kinds and not _said_mixed:
        _said_mixed = True
        warnings.warn(
            f"the strategy's replicas are on devices of several kinds ({', '.join(kinds)}): each "
            "step waits for the slowest of them; give the strategy devices of one kind",
            stacklevel=2,
        )


def make_reducer(
    variables: Sequence[Any],
    options: Options,
    name: str,
    collective: Collective,
    key: str,
    chooser: Chooser | None = None,
) -> Reducer:
    """One reducer of the variables' gradients over `collective`; shakes hands."""
    plan = options.policy.plan(variables, collective.size, options.bucket_bytes)
    return Reducer(
        replace(plan, momentum=options.momentum is not None),
        collective,
        average=options.average,
        error_feedback=bool(options.error_feedback),
        momentum=options.momentum,
        seed=options.seed,
        chooser=chooser,
        name=name,
        key=key,
    )
