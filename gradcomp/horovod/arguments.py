"""Arguments of Horovod's signatures: understood, or refused by name."""

from __future__ import annotations

import math
from typing import Any

import horovod.tensorflow as hvd

from gradcomp.codecs import FP16
from gradcomp.codecs.base import Codec
from gradcomp.options import Options
from gradcomp.policy import Policy
from gradcomp.warmup import Warmup, schedule


class Compression:
    """Horovod's names for its two compressions, for scripts that use them."""

    none = None
    fp16 = FP16()


def as_average(op: Any) -> bool:
    """True for `hvd.Average` and None, False for `hvd.Sum`.

    Raises:
      ValueError: any other operation.
    """
    if op is None or op == hvd.Average:
        return True
    if op == hvd.Sum:
        return False
    raise ValueError(
        f"op must be hvd.Average or hvd.Sum, got {op!r}: other reductions can't be made of "
        "compressed gradients"
    )


def as_error_feedback(error_feedback: Any) -> bool | str:
    """True, False or "momentum".

    Raises:
      ValueError: anything else.
    """
    if isinstance(error_feedback, bool) or error_feedback == "momentum":
        return error_feedback
    raise ValueError(f'error_feedback must be True, False or "momentum", got {error_feedback!r}')


def as_compression(compression: Any) -> Policy | Warmup | Codec | str | None:
    """What gradcomp takes; Horovod's own compressors are translated."""
    if compression is hvd.Compression.none:
        return Compression.none
    if compression is hvd.Compression.fp16:
        return Compression.fp16
    if compression is None or isinstance(compression, Policy | Warmup | Codec | str):
        return compression
    raise TypeError(
        f"compression must be a gradcomp codec, policy or spec such as 'quantize:bits=4', got "
        f"{compression!r}"
    )


def refuse_warmup(compression: Policy | Warmup | Codec | str | None) -> Policy | Codec | str | None:
    """`compression`, for functions that know of no epochs.

    Raises:
      ValueError: it is a warm-up.
    """
    chosen = schedule(compression) if isinstance(compression, str) else compression
    if isinstance(chosen, Warmup):
        raise ValueError(
            "allreduce knows of no epochs that a Warmup could follow: pass the codec of the epoch "
            "that it is, each with a FeedbackState of its own, or use an optimizer or a tape"
        )
    return compression  # type: ignore[return-value]


# What each argument of Horovod's must be for gradcomp to do what it asks, and what to do instead.
_NEUTRAL: dict[str, tuple[Any, str]] = {
    "device_dense": ("", "operations run where their tensors are; use `with tf.device(...)`"),
    "device_sparse": ("", "operations run where their tensors are; use `with tf.device(...)`"),
    "num_groups": (0, "gradients travel in buckets; bucket_bytes= says how large they are"),
    "groups": (None, "gradients travel in buckets; bucket_bytes= says how large they are"),
    "scale_local_gradients": (True, "gradients of local variables are never touched"),
    "use_locking": (False, "Keras 3 has no locks"),
    "prescale_factor": (1.0, "multiply the tensor before it is reduced"),
    "postscale_factor": (1.0, "multiply the result"),
    "ignore_name_scope": (False, "names never carry a scope"),
}


def refuse_unsupported(function: str, **arguments: Any) -> None:
    """Raises ValueError for arguments of Horovod's that gradcomp doesn't honour."""
    for name, value in arguments.items():
        neutral, remedy = _NEUTRAL[name]
        if value is not neutral and value != neutral:
            raise ValueError(
                f"{function}({name}={value!r}) is not supported by gradcomp; leave {name} at "
                f"{neutral!r}: {remedy}"
            )


def as_op(op: Any, average: Any) -> Any:
    """`op`, or what the older argument `average` stands for.

    Raises:
      TypeError: `average` is no bool, as when `name` is passed in its place.
      ValueError: both are given.
    """
    if average is None:
        return op
    if not isinstance(average, bool):
        raise TypeError(
            f"average must be True or False, got {average!r}; pass the other arguments by name"
        )
    if op is not None:
        raise ValueError("op and average say the same; give op only")
    return hvd.Average if average else hvd.Sum


def as_ranks(process_set: Any) -> tuple[int, ...] | None:
    """The ranks of a process set; None for the global one.

    Raises:
      TypeError: not a process set.
      ValueError: one that Horovod does not know.
    """
    if not isinstance(process_set, hvd.ProcessSet):
        raise TypeError(f"process_set must be a hvd.ProcessSet, got {process_set!r}")
    if process_set.process_set_id == 0:
        return None
    if process_set.process_set_id is None:
        raise ValueError(
            f"Horovod does not know the process set of ranks {process_set.ranks} yet: give it to "
            "hvd.init(process_sets=[...]), or to hvd.add_process_set on every rank after "
            'hvd.init(process_sets="dynamic")'
        )
    return tuple(process_set.ranks)


def make_options(
    *,
    compression: Any,
    op: Any,
    process_set: Any,
    gradient_predivide_factor: float,
    hierarchical: bool,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    error_feedback: Any,
    **others: Any,
) -> Options:
    """Options of an optimizer or a tape, from the arguments of Horovod's signatures and ours.

    Raises:
      TypeError, ValueError: an argument, or two of them together, have no meaning.
    """
    average, ranks = as_average(op), as_ranks(process_set)
    steps, factor = backward_passes_per_step, gradient_predivide_factor
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(
            f"backward_passes_per_step must be an integer of at least 1, got {steps!r}"
        )
    if not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise ValueError(f"gradient_predivide_factor must be a positive number, got {factor!r}")
    if factor != 1.0 and not average:
        raise ValueError(
            f"gradient_predivide_factor={factor!r} divides before and after an average, and op is "
            "hvd.Sum; leave it at 1.0"
        )
    if hierarchical and ranks is not None:
        raise ValueError(
            f"hierarchical=True is for all ranks, and process_set has ranks {list(ranks)}; use "
            "one of the two"
        )
    if hierarchical and error_feedback == "momentum":
        raise ValueError(
            'error_feedback="momentum" needs to know on each rank what was sent, and with '
            "hierarchical=True only the leader of a host does; use one of the two"
        )
    return Options(
        schedule(as_compression(compression)),
        average,
        as_error_feedback(error_feedback),
        backward_passes_per_step=steps,
        average_aggregated_gradients=average_aggregated_gradients,
        gradient_predivide_factor=float(factor),
        process_set=ranks,
        hierarchical=hierarchical,
        **others,
    )
