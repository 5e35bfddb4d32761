"""What the tensors of a function's graph are: activations, weights or constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Their outputs are their inputs' elements in the same order: TensorFlow shares the buffer.
_VIEWS = frozenset({"Reshape", "Identity", "ExpandDims", "Squeeze", "StopGradient", "EnsureShape"})


class Reach:
    """Answers by the ops that a tensor comes from; each tensor is looked at once."""

    def __init__(self, graph: Any) -> None:
        self._captured = {t.name for t in graph.internal_captures}
        self._activation: dict[str, bool] = {}
        self._differentiable: dict[str, bool] = {}

    def is_activation(self, tensor: Any) -> bool:
        """Whether it depends on an argument or on chance: not on weights and constants alone."""

        def at_end(t: Any) -> bool | None:
            if t.op.type == "Placeholder":
                return t.name not in self._captured
            return "Random" in t.op.type or None

        return _any_source(tensor, self._activation, at_end)

    def is_differentiable(self, tensor: Any) -> bool:
        """Whether a gradient with respect to it may be asked for: it isn't made of constants."""

        def at_end(t: Any) -> bool | None:
            if t.dtype == tf.resource:
                return True
            if not t.dtype.is_floating or t.op.type == "StopGradient":
                return False
            return True if t.op.type == "Placeholder" else None

        return _any_source(tensor, self._differentiable, at_end)


def base(tensor: Any) -> Any:
    """The tensor whose elements, in order, `tensor` is a view of."""
    while tensor.op.type in _VIEWS and tensor.op.inputs[0].dtype == tensor.dtype:
        tensor = tensor.op.inputs[0]
    return tensor


def _any_source(tensor: Any, known: dict[str, bool], at_end: Callable[[Any], bool | None]) -> bool:
    """Whether `at_end` is true of the tensor or of one that it comes from.

    `at_end` gives None for tensors that are what their inputs are.
    """
    stack = [tensor]
    while stack:
        current = stack[-1]
        if current.name in known:
            stack.pop()
            continue
        answer = at_end(current)
        if answer is None:
            inputs = list(current.op.inputs)
            if any(known.get(t.name) for t in inputs):
                answer = True
            else:
                missing = [t for t in inputs if t.name not in known]
                if missing:
                    stack += missing
                    continue
                answer = False
        known[current.name] = answer
        stack.pop()
    return known[tensor.name]
