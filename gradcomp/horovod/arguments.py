"""Arguments of Horovod's signatures: understood, or refused by name."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd

from gradcomp.codecs import FP16
from gradcomp.codecs.base import Codec
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


# What each argument of Horovod's must be for gradcomp to do what it asks.
_NEUTRAL: dict[str, Any] = {
    "device_dense": "",
    "device_sparse": "",
    "sparse_as_dense": False,
    "gradient_predivide_factor": 1.0,
    "backward_passes_per_step": 1,
    "average_aggregated_gradients": False,
    "num_groups": 0,
    "groups": None,
    "process_set": hvd.global_process_set,
    "scale_local_gradients": True,
    "use_locking": False,
    "prescale_factor": 1.0,
    "postscale_factor": 1.0,
    "ignore_name_scope": False,
}


def refuse_unsupported(function: str, arguments: dict[str, Any]) -> None:
    """Raises for arguments that Horovod knows and gradcomp doesn't honour, and for unknown ones."""
    for name, value in arguments.items():
        if name not in _NEUTRAL:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        if value is not _NEUTRAL[name] and value != _NEUTRAL[name]:
            raise ValueError(
                f"{function}({name}={value!r}) is not supported by gradcomp; "
                f"leave {name} at {_NEUTRAL[name]!r}"
            )
