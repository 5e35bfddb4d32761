"""`hvd.DistributedGradientTape` for custom training loops."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from gradcomp.bucket import DEFAULT_BUCKET_BYTES
from gradcomp.horovod.arguments import make_options, refuse_unsupported
from gradcomp.horovod.collective import reducer_of
from gradcomp.horovod.functions import unwrap
from gradcomp.kinds import densified
from gradcomp.options import Options
from gradcomp.reducer import Reducer

# Scripts make a new tape each step, so residuals belong to the variables, not to the tape.
_reducers: dict[tuple[tuple[int, ...], Options], Reducer] = {}


def _reducer_for(sources: Sequence[Any], named: Sequence[Any], options: Options) -> Reducer:
    """The reducer of these variables and options, made at first use among the present ranks."""
    key = (tuple(map(id, sources)), options)
    before = _reducers.get(key)
    if before is None or before.retired:
        _reducers[key] = reducer_of(named, options, "tape", before)
        for source in sources if before is None else ():
            weakref.finalize(source, _reducers.pop, key, None)
    return _reducers[key]


class DistributedGradientTape:
    """A `tf.GradientTape` whose `gradient` is the average over all Horovod ranks, compressed.

    Keras variables are accepted as sources. Error feedback is kept for each list of sources, from
    step to step, although the tape is made anew each time.

    Arguments are in Horovod's order. Those that are not told here must stay at their defaults.

    Args:
      gradtape: the tape that recorded the computation.
      compression: codec, `Policy`, `Warmup`, spec, Horovod's own `hvd.Compression.fp16`, or None.
      sparse_as_dense, gradient_predivide_factor, process_set, hierarchical: as in
        `DistributedOptimizer`.
      op: `hvd.Average` or `hvd.Sum`.
      error_feedback: keep what lossy codecs drop and send it later (arXiv:1901.09847); True or
        False, since "momentum" needs the optimizer's.
      bucket_bytes: gradients are exchanged in buckets of about this many raw bytes.
      seed: of the random bits of stochastic rounding; equal on all ranks.
      loss_scale: what the loss was multiplied by, a number, tensor or variable. Gradients are
        exchanged unscaled, so that residuals outlive a change of scale, and returned scaled.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = None,
        sparse_as_dense: bool = False,
        op: Any = hvd.Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: Any = hvd.global_process_set,
        scale_local_gradients: bool = True,
        *,
        hierarchical: bool = False,
        error_feedback: bool | str = True,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        seed: int = 0,
        loss_scale: Any = None,
    ) -> None:
        if error_feedback == "momentum":
            raise ValueError(
                'error_feedback="momentum" takes the momentum from an optimizer, which a tape does '
                "not know: pass it to hvd.DistributedOptimizer and use a plain tape, or leave "
                "error_feedback=True"
            )
        refuse_unsupported(
            "DistributedGradientTape",
            device_dense=device_dense,
            device_sparse=device_sparse,
            num_groups=num_groups,
            groups=groups,
            scale_local_gradients=scale_local_gradients,
        )
        self._tape = gradtape
        self._loss_scale = unwrap(loss_scale)
        self._options = make_options(
            compression=compression,
            op=op,
            process_set=process_set,
            gradient_predivide_factor=gradient_predivide_factor,
            hierarchical=hierarchical,
            sparse_as_dense=sparse_as_dense,
            error_feedback=error_feedback,
            bucket_bytes=bucket_bytes,
            seed=seed,
        )

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @tf.autograph.experimental.do_not_convert  # nothing in it depends on a tensor's value
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = True,
    ) -> Any:
        """Like `tf.GradientTape.gradient`, reduced over all ranks.

        Args:
          target: a tensor or a structure of them.
          sources: a variable (Keras or TensorFlow) or a structure of variables.
          use_generic_names: of Horovod's signature; names of operations are generic either way.

        Returns:
          The gradients in the structure of `sources`; None where no rank has one.

        Raises:
          TypeError: a source is not a variable, so that no residual can be kept for it.
          MismatchError: at first use, when ranks disagree about codecs, shapes or order.
        """
        named = tf.nest.flatten(sources)
        flat = [unwrap(source) for source in named]
        for source in flat:
            if not isinstance(source, tf.Variable):
                raise TypeError(
                    f"sources must be variables, got {type(source).__name__}: take the gradient "
                    "with the plain tape and reduce it with hvd.allreduce"
                )
        gradients = self._tape.gradient(target, flat, output_gradients, unconnected_gradients)
        if self._options.sparse_as_dense:
            gradients = densified(gradients)
        reducer = _reducer_for(flat, named, self._options)
        if self._loss_scale is not None:
            gradients = [_times(g, 1.0 / tf.cast(self._loss_scale, tf.float32)) for g in gradients]
        reduced, present = reducer.reduce(gradients)
        reduced = [
            after if before is not None else _found_elsewhere(reducer, i, after, present[i])
            for i, (before, after) in enumerate(zip(gradients, reduced, strict=True))
        ]
        if self._loss_scale is not None:
            reduced = [_times(g, self._loss_scale) for g in reduced]
        return tf.nest.pack_sequence_as(sources, reduced)


def _found_elsewhere(reducer: Reducer, index: int, reduced: Any, present: tf.Tensor) -> Any:
    """The gradient of a variable that has none here: None if no other rank has one either."""
    if tf.executing_eagerly():
        return reduced if present else None
    if not reducer.unused(index):
        return reduced
    # While tracing nobody knows what other ranks will have. A variable that none used in the first
    # step is taken for unused, and ranks must not drift apart if it is not.
    path = reducer.plan.variables[index].path
    tf.debugging.Assert(
        tf.logical_not(present),
        [f"{path} had no gradient on any rank at first, and has one on some ranks only now"],
    )
    return None


def _times(gradient: Any, factor: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            _times(gradient.values, factor), gradient.indices, gradient.dense_shape
        )
    return gradient * tf.cast(factor, gradient.dtype)
