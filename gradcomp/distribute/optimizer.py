"""`gc.DistributedOptimizer`: one optimizer for every engine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from gradcomp import live
from gradcomp.bucket import DEFAULT_BUCKET_BYTES
from gradcomp.codecs.base import Codec
from gradcomp.collective import alone
from gradcomp.distribute.engine import engine_of, say_once
from gradcomp.distribute.prepare import demand_prepare
from gradcomp.distribute.reducers import ReplicaReducers
from gradcomp.distribute.replicas import make_reducer, reducers_of_strategy, unique_name
from gradcomp.distribute.updates import StrategyOptimizer
from gradcomp.options import Options
from gradcomp.policy import Policy
from gradcomp.reducer import Reducer
from gradcomp.warmup import Warmup, schedule
from gradcomp.wrap import built_in, distribute, distributed_class

_PACKAGE = "gradcomp"


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    compression: Policy | Warmup | Codec | str | None = None,
    *,
    error_feedback: bool | str = True,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    seed: int = 0,
) -> Any:
    """A Keras optimizer that reduces gradients over all replicas or ranks, compressed.

    When it is built it finds out what it runs in: a `tf.distribute` strategy, whose scope it is
    built in, sums the replicas' gradients, since Keras has divided the loss already; Horovod, if it
    is initialized, averages; in one process nothing is exchanged. The logger "gradcomp" is told
    once which of them it is.

    Args:
      optimizer: any Keras 3 optimizer; it is made distributed and returned.
      compression: codec, `Policy`, `Warmup`, spec such as "topk:density=0.01", or None.
      error_feedback: keep what lossy codecs drop and send it later (arXiv:1901.09847). "momentum",
        with an SGD that has one: what is kept gathers momentum meanwhile (arXiv:1712.01887).
      bucket_bytes: gradients are exchanged in buckets of about this many raw bytes.
      seed: of the random bits of stochastic rounding; equal on all ranks.

    Returns:
      The optimizer, which also has `plan` (print it) and `traffic()`.

    Raises:
      MismatchError: when the optimizer is built and ranks disagree about codecs, shapes or order.
      TypeError, ValueError: an argument that can't be honoured; it is named.
    """
    options = Options(
        policy=schedule(compression),
        error_feedback=error_feedback,
        bucket_bytes=bucket_bytes,
        seed=seed,
    )
    return distribute(optimizer, options, _make_reducer, _PACKAGE, StrategyOptimizer)


def _make_reducer(
    variables: Sequence[Any], options: Options, before: Reducer | None
) -> Reducer | ReplicaReducers:
    name = unique_name("distributed")
    made: Reducer | ReplicaReducers
    if tf.distribute.has_strategy():
        made = reducers_of_strategy(variables, options, name)
        engine = engine_of(tf.distribute.get_strategy())
    else:
        if "horovod.tensorflow" in sys.modules:
            importlib.import_module("gradcomp.horovod")  # tells `live` how to reach the ranks
        collective = live.launched() or alone()
        made = make_reducer(variables, options, name, collective, name)
        engine = collective.engine
    say_once(engine, made.alone)
    return made


demand_prepare()
for _base in built_in():
    distributed_class(_base, _make_reducer, _PACKAGE, StrategyOptimizer)
