"""What each layer of a model keeps for backward, found by building a gradient, not running it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from gradcomp.activations import override
from gradcomp.activations.kept import captured
from gradcomp.activations.reach import base
from gradcomp.activations.units import Unit
from gradcomp.errors import ActivationError

BETWEEN = "(between layers)"


@dataclass
class Trace:
    """One training call at a batch size.

    Attributes:
      bytes: of what is kept, by the path of the layer that keeps it; `BETWEEN` for the rest. A
        tensor that several layers read is the first reader's.
      outputs: (shape, dtype) of the layers' first outputs, by path.
    """

    bytes: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)


def trace(model: Any, layers: Sequence[Unit], batch_size: int) -> Trace:
    """Traces a training call of the model as it is now.

    Raises:
      ActivationError: the model's input shape is not known.
    """
    result = Trace()
    owners: dict[str, str] = {}
    sessions = []

    @tf.function(autograph=False)
    def forward(inputs: Any) -> Any:
        with override.packing(None) as session, _noting(layers, owners, result):
            sessions.append(session)
            return override.noted(model(inputs, training=True))

    @tf.function(autograph=False)
    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x for x in tf.nest.flatten(inputs) if x.dtype.is_floating])
            outputs = tf.nest.flatten(forward(inputs))
        return tape.gradient(outputs, [_first(v.value) for v in model.trainable_variables])

    step.get_concrete_function(input_specs(model, batch_size))
    session = sessions[-1]
    seen = set()
    for graph in session.backward:
        for tensor in captured(session, graph):
            root = base(tensor)
            if root.name in seen or not session.reach.is_activation(root):
                continue
            seen.add(root.name)
            reader = session.readers.get(root.name, tensor.op)
            path = owners.get(reader.name, BETWEEN)
            size = override.numel(root) * root.dtype.size
            result.bytes[path] = result.bytes.get(path, 0) + size
    return result


def _first(variable: Any) -> Any:
    """A variable, or the first of those that a strategy has in its place: that is read here."""
    return getattr(variable, "values", (variable,))[0]


def input_specs(model: Any, batch_size: int) -> Any:
    """A structure of tf.TensorSpec of a batch of a model's inputs."""
    inputs = getattr(model, "_inputs_struct", None)  # of a functional model: a list, a dict or one
    if inputs is None:
        inputs = getattr(model, "inputs", None)
    if inputs is None:
        built = (model.get_build_config() or {}).get("input_shape") if model.built else None
        if not built or not all(isinstance(dim, int | None) for dim in built):
            raise ActivationError(
                f"the shape of {model.name}'s inputs isn't known: build it with keras.Input, or "
                "call `build` with the shape of its one input"
            )
        inputs = keras.KerasTensor(built, model.input_dtype)

    def spec(x: Any) -> Any:
        dims = [batch_size, *x.shape[1:]]
        if None in dims:
            raise ActivationError(
                f"{model.name}'s input has the shape {tuple(x.shape)}: only the batch may be "
                "unknown where bytes are to be told"
            )
        return tf.TensorSpec(dims, x.dtype)

    specs = keras.tree.map_structure(spec, inputs)
    return specs[0] if isinstance(specs, list) and len(specs) == 1 else specs


@contextlib.contextmanager
def _noting(layers: Sequence[Unit], owners: dict[str, str], result: Trace) -> Iterator[None]:
    """While it lasts, calls of layers note which ops they make, and what they return."""
    saved = [(unit.layer, unit.layer.__dict__.get("call")) for unit in layers]
    for unit in layers:
        unit.layer.call = _noted(unit.path, unit.layer.call, owners, result)
    try:
        yield
    finally:
        for layer, call in saved:
            if call is None:
                del layer.call
            else:
                layer.call = call


def _noted(path: str, call: Any, owners: dict[str, str], result: Trace) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        outputs = call(*args, **kwargs)
        for op in graph.get_operations()[before:]:
            owners.setdefault(op.name, path)
        first = tf.nest.flatten(outputs)[0]
        if first.shape.is_fully_defined():
            result.outputs[path] = tuple(first.shape), first.dtype.name
        return outputs

    return noted
