"""`hvd.DistributedOptimizer` for Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras

from gradcomp.bucket import DEFAULT_BUCKET_BYTES
from gradcomp.horovod.arguments import make_options, refuse_unsupported
from gradcomp.horovod.collective import reducer_of
from gradcomp.options import Options
from gradcomp.reducer import Reducer
from gradcomp.wrap import built_in, distribute, distributed_class

_PACKAGE = "gradcomp.horovod"


def _reducer(variables: Sequence[Any], options: Options, before: Reducer | None) -> Reducer | None:
    # A saved model is loaded with its optimizer also where nothing is to be trained.
    if not hvd.is_initialized():
        return None
    return reducer_of(variables, options, "optimizer", before)


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = hvd.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = hvd.global_process_set,
    scale_local_gradients: bool = True,
    *,
    use_locking: bool = False,
    hierarchical: bool = False,
    error_feedback: bool | str = True,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    seed: int = 0,
) -> Any:
    """A Keras optimizer that averages gradients over all Horovod ranks, compressed.

    Arguments are in the order of `horovod.tensorflow.keras`. Those that are not told here must
    stay at their defaults.

    Args:
      optimizer: any Keras 3 optimizer; it is made distributed and returned.
      name: new name for the optimizer; None keeps its own.
      compression: codec, `Policy`, `Warmup`, spec such as "topk:density=0.01", Horovod's own
        `hvd.Compression.fp16`, or None for uncompressed gradients.
      sparse_as_dense: make tensors of `tf.IndexedSlices` before they are exchanged; the optimizer
        gets tensors, too.
      gradient_predivide_factor: f, with `hvd.Average`: what is sent uncompressed is multiplied by
        1/f before it is summed and by f/size afterwards. Encoded gradients are summed in float32,
        each divided by the size before, and need no factor.
      op: `hvd.Average` or `hvd.Sum`.
      backward_passes_per_step: k > 1 makes the optimizer accumulate k gradients before it exchanges
        and uses them, with Keras's `gradient_accumulation_steps`.
      average_aggregated_gradients: use the mean of those k gradients, not their sum.
      process_set: the ranks that exchange gradients; on others they are used as they are.
      hierarchical: sum gradients uncompressed among the ranks of a host, and exchange the sums
        compressed between hosts. Needs `hvd.init(process_sets="dynamic")`.
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
    refuse_unsupported(
        "DistributedOptimizer",
        device_dense=device_dense,
        device_sparse=device_sparse,
        num_groups=num_groups,
        groups=groups,
        scale_local_gradients=scale_local_gradients,
        use_locking=use_locking,
    )
    options = make_options(
        compression=compression,
        op=op,
        process_set=process_set,
        gradient_predivide_factor=gradient_predivide_factor,
        hierarchical=hierarchical,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        sparse_as_dense=sparse_as_dense,
        error_feedback=error_feedback,
        bucket_bytes=bucket_bytes,
        seed=seed,
    )
    distributed = distribute(optimizer, options, _reducer, _PACKAGE)
    if name is not None:
        distributed.name = name
    return distributed


def _register_built_in() -> None:
    """A model saved by one process names a class that another one has not created yet."""
    for base in built_in():
        distributed_class(base, _reducer, _PACKAGE)


_register_built_in()
