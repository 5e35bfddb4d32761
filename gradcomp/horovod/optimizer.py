"""`hvd.DistributedOptimizer` for Keras 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras

from gradcomp.bucket import DEFAULT_BUCKET_BYTES
from gradcomp.horovod.arguments import (
    as_average,
    as_compression,
    as_error_feedback,
    refuse_unsupported,
)
from gradcomp.horovod.collective import make_reducer, unique_name
from gradcomp.options import Options
from gradcomp.reducer import Reducer
from gradcomp.warmup import schedule
from gradcomp.wrap import distribute, distributed_class

_PACKAGE = "gradcomp.horovod"


def _reducer(variables: Sequence[Any], options: Options, before: Reducer | None) -> Reducer | None:
    # A saved model is loaded with its optimizer also where nothing is to be trained.
    if not hvd.is_initialized():
        return None
    plan = options.policy.plan(variables, hvd.size(), options.bucket_bytes)
    plan = dataclasses.replace(plan, momentum=options.momentum is not None)
    return make_reducer(plan, options, unique_name("optimizer"), before)


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    *,
    compression: Any = None,
    op: Any = hvd.Average,
    error_feedback: bool | str = True,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    seed: int = 0,
    **horovod_arguments: Any,
) -> Any:
    """A Keras optimizer that averages gradients over all Horovod ranks, compressed.

    Args:
      optimizer: any Keras 3 optimizer; it is made distributed and returned.
      name: new name for the optimizer; None keeps its own.
      compression: codec, `Policy`, `Warmup`, spec such as "topk:density=0.01", Horovod's own
        `hvd.Compression.fp16`, or None for uncompressed gradients.
      op: `hvd.Average` or `hvd.Sum`.
      error_feedback: keep what lossy codecs drop and send it later (arXiv:1901.09847). "momentum",
        with an SGD that has one: what is kept gathers momentum meanwhile, and gradients are clipped
        on each rank (arXiv:1712.01887).
      bucket_bytes: gradients are exchanged in buckets of about this many raw bytes.
      seed: of the random bits of stochastic rounding; equal on all ranks.

    Returns:
      The optimizer, which also has `plan` (print it) and `traffic()`.

    Raises:
      MismatchError: when the optimizer is built and ranks disagree about codecs, shapes or order.
      TypeError, ValueError: an argument that can't be honoured; it is named.
    """
    refuse_unsupported("DistributedOptimizer", horovod_arguments)
    options = Options(
        schedule(as_compression(compression)),
        as_average(op),
        as_error_feedback(error_feedback),
        bucket_bytes,
        seed,
    )
    distributed = distribute(optimizer, options, _reducer, _PACKAGE)
    if name is not None:
        distributed.name = name
    return distributed


def _register_built_in() -> None:
    """A model saved by one process names a class that another one has not created yet."""
    for base in built_in():
        distributed_class(base, _reducer, _PACKAGE)


def built_in() -> list[type]:
    """Keras's own optimizers that can be distributed."""
    optimizer = keras.optimizers.Optimizer
    around = (keras.optimizers.LossScaleOptimizer, keras.optimizers.MultiOptimizer)
    found = [c for c in vars(keras.optimizers).values() if isinstance(c, type)]
    return [c for c in found if issubclass(c, optimizer) and c not in (optimizer, *around)]


_register_built_in()
