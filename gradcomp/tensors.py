"""Exchanges of tensors that belong to no variable: their plan, and what is kept between calls."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradcomp.bucket import VariableSpec
from gradcomp.codecs.base import Codec, codec
from gradcomp.plan import Plan, describe
from gradcomp.policy import DISABLED, NO_CODEC, Policy, disabled


class FeedbackState:
    """What error feedback keeps between calls of `allreduce` or `all_reduce` for the same tensors.

    Make one for each tensor, or group of tensors, that is reduced again and again:

      >>> state = gc.FeedbackState()
      >>> mean = gc.all_reduce(tensor, gc.TopK(density=0.01), state=state)
    """

    def __init__(self) -> None:
        self.reducer: Any = None  # of the engine, once it is used


def plan_of(
    tensors: Sequence[tf.Tensor], chosen: Policy | Codec | str | None, name: Any, size: int
) -> Plan:
    """How tensors that belong to no variable are exchanged among `size` ranks.

    Args:
      chosen: a codec for all, or a policy, which goes by `name` and by `tensor_0`, `tensor_1`, …

    Raises:
      TypeError, ValueError: a tensor that can't be compressed so.
    """
    if isinstance(chosen, Policy):
        choices = [chosen.default, *(one for _, one in chosen.rules)]
    else:
        choices = [chosen]
    if not disabled() and any(c is not None and c.decides for c in map(codec, choices)):
        raise ValueError(
            "Auto chooses when an optimizer or a tape is built, and tensors are reduced without: "
            "name a codec, such as 'quantize:bits=8'"
        )
    specs = []
    labels = [name or f"tensor_{i}" for i in range(len(tensors))]
    for label, tensor in zip(labels, tensors, strict=True):
        if is_sliced(tensor) and not tensor.shape.is_fully_defined():
            raise ValueError(
                f"{label} is tf.IndexedSlices whose dense_shape is not known before a step runs, "
                "and a residual or a plan needs it: give it a constant dense_shape"
            )
    for i, (_, shape, dtype) in enumerate(describe(tensors)):
        if isinstance(chosen, Policy):
            one = chosen.codec_for(labels[i], shape, dtype)
        else:
            one = None if disabled() else codec(chosen)
        if one is not None and dtype not in ("float32", "float16", "bfloat16"):
            raise TypeError(
                f"{labels[i]} has dtype {dtype}; {one.spec} compresses float32, float16 and "
                "bfloat16: cast it, or pass compression=None"
            )
        # Slices and tensors of the same shape are not exchanged alike, and need two reducers.
        path = f"{labels[i]} (slices)" if is_sliced(tensors[i]) else labels[i]
        why = DISABLED if disabled() else NO_CODEC
        specs.append(VariableSpec(i, path, shape, dtype, one, why=why))
    return Plan(tuple(specs), size)


def is_sliced(tensor: Any) -> bool:
    """Whether it is `tf.IndexedSlices`."""
    return isinstance(tensor, tf.IndexedSlices)


def operation_name(tensors: Sequence[tf.Tensor], name: str | None) -> str:
    """Two calls in one graph may run at once, and need two names; eager calls never do."""
    if name is None and not tf.executing_eagerly():
        name = tensors[0].name.replace(":", "_").replace("/", "_")
    return f"gradcomp.allreduce.{name or 'eager'}"


_said_biased: set[str] = set()


def warn_biased(plan: Plan) -> None:
    """Says once for each codec that needs a state what is lost without."""
    for v in plan.variables:
        if v.codec is None or v.codec.unbiased() or v.codec.spec in _said_biased:
            continue
        _said_biased.add(v.codec.spec)
        warnings.warn(
            f"{v.codec.spec} is biased and allreduce has no state to keep what it drops, so the "
            "error adds up over steps; pass state=gc.FeedbackState()",
            stacklevel=4,
        )
