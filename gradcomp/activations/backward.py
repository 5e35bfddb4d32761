"""An op's gradient as a small graph of its own, which tells what it reads and can be copied.

TensorFlow registers gradients as functions of an op. Such a function is run once on a copy of the
op in a scratch graph; what of the result needs an input or an output of the op, and for what, is
then a question of reachability.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Recipe:
    """How gradients of one kind of op are made.

    Attributes:
      graph_def: the nodes to copy, without those of the op, its inputs and its upstream gradients.
      reads: names of the tensors ("in0:0", "op:1") whose values are needed.
      shapes: pairs (tensor that holds a shape in `graph_def`, tensor whose shape it is).
      gradients: for each input that was asked for, a structure of names of tensors, or None.
    """

    graph_def: Any
    reads: tuple[str, ...]
    shapes: tuple[tuple[str, str], ...]
    gradients: tuple[Any, ...]

    def build(self, value: Callable[[str], Any], shape: Callable[[str], Any]) -> list[Any]:
        """Copies the gradient into the default graph.

        Args:
          value: gives the tensor of that graph for a name in `reads` or of an upstream gradient.
          shape: gives the shape of a tensor, by its name, as an int32 tensor of that graph.
        Returns:
          for each input that was asked for, its gradient or None.
        """
        # Names are called as they are needed: an op's input may cost memory to bring back.
        sources = {name: value(name) for name in self.reads}
        sources |= {made: shape(name) for made, name in self.shapes}
        wanted = tf.nest.flatten(list(self.gradients), expand_composites=True)
        names = list(dict.fromkeys(name for name in wanted if name not in sources and name))
        made = dict(sources)
        if names:
            outputs = tf.graph_util.import_graph_def(
                self.graph_def, input_map=sources, return_elements=names, name="gradient"
            )
            made |= dict(zip(names, outputs, strict=True))
        return [_structure(gradient, made) for gradient in self.gradients]


def recipe(op: Any, wanted: Sequence[int]) -> Recipe:
    """The recipe for the gradients of a graph's op with respect to its inputs `wanted`.

    Upstream gradients are named "dy0:0" and so on, inputs "in0:0", outputs "op:0".
    """
    node = tf.compat.v1.NodeDef()
    node.CopyFrom(op.node_def)
    for private in ("_gradient_op_type", "_class"):
        node.attr.pop(private, None)
    node.name, node.device = "op", ""
    del node.input[:]
    node.input.extend(f"in{i}" for i in range(len(op.inputs)))
    constants = tuple(_constant(tensor) for tensor in op.inputs)
    shapes = tuple((t.dtype, None if t.shape.rank is None else tuple(t.shape)) for t in op.inputs)
    return _recipe(node.SerializeToString(deterministic=True), shapes, constants, tuple(wanted))


@functools.lru_cache(maxsize=1024)
def _recipe(
    node_bytes: bytes,
    inputs: tuple[tuple[Any, Any], ...],
    constants: tuple[tuple[bytes, tuple[int, ...]] | None, ...],
    wanted: tuple[int, ...],
) -> Recipe:
    node = tf.compat.v1.NodeDef.FromString(node_bytes)
    with tf.Graph().as_default() as graph:
        tensors = []
        for i, ((dtype, shape), constant) in enumerate(zip(inputs, constants, strict=True)):
            if constant is None:
                tensors.append(tf.compat.v1.placeholder(dtype, shape, name=f"in{i}"))
            else:
                array = np.frombuffer(constant[0], dtype.as_numpy_dtype).reshape(constant[1])
                tensors.append(tf.constant(array, dtype, name=f"in{i}"))
        (op,) = tf.graph_util.import_graph_def(
            tf.compat.v1.GraphDef(node=[node]),
            input_map={f"in{i}": tensor for i, tensor in enumerate(tensors)},
            return_elements=["op"],
            name="",
        )
        outputs = {i: t for i, t in enumerate(op.outputs) if t.dtype.is_floating}
        upstream = [
            tf.compat.v1.placeholder(t.dtype, t.shape, name=f"dy{i}") for i, t in outputs.items()
        ]
        gradients = tf.gradients(
            list(outputs.values()), [tensors[i] for i in wanted], grad_ys=upstream
        )
    return _extract(graph, op, tensors, upstream, gradients)


def _extract(
    graph: Any, op: Any, inputs: Sequence[Any], upstream: Sequence[Any], gradients: Sequence[Any]
) -> Recipe:
    constants = {t.op for t in inputs if t.op.type == "Const"}
    own = {op, *(t.op for t in (*inputs, *upstream))} - constants
    found = tf.nest.flatten([g for g in gradients if g is not None], expand_composites=True)
    reads = {t.name for t in found if t.op in own}
    shapes: dict[str, str] = {}
    kept = set()
    pending = [t.op for t in found]
    while pending:
        current = pending.pop()
        if current in kept or current in own:
            continue
        sources = list(current.inputs)
        # Other ops than Shape that read the shape only are rare, and copied with the value.
        if (
            current.type == "Shape"
            and sources[0].op in own
            and current.get_attr("out_type") == tf.int32
        ):
            shapes[current.outputs[0].name] = sources[0].name
            continue
        kept.add(current)
        reads.update(t.name for t in sources if t.op in own)
        pending += [t.op for t in sources] + list(current.control_inputs)
    whole = graph.as_graph_def()
    graph_def = tf.compat.v1.GraphDef(versions=whole.versions)
    names = {operation.name for operation in kept}
    for node in whole.node:
        if node.name in names:
            copied = graph_def.node.add()
            copied.CopyFrom(node)
            copied.attr.pop("_class", None)  # it names ops to be placed with
            # A dependence on the op itself, or on what only orders it, has no meaning here.
            inputs_left = [i for i in node.input if not i.startswith("^") or i[1:] in names]
            del copied.input[:]
            copied.input.extend(inputs_left)
    return Recipe(
        graph_def,
        tuple(sorted(reads)),
        tuple(sorted(shapes.items())),
        tuple(None if g is None else _names(g) for g in gradients),
    )


def _names(gradient: Any) -> Any:
    """A gradient with tensors' names in place of the tensors."""
    if isinstance(gradient, tf.IndexedSlices):
        shape = gradient.dense_shape
        return (gradient.values.name, gradient.indices.name, None if shape is None else shape.name)
    return gradient.name


def _structure(gradient: Any, made: dict[str, Any]) -> Any:
    if isinstance(gradient, tuple):
        values, indices, shape = gradient
        return tf.IndexedSlices(made[values], made[indices], made.get(shape))
    return None if gradient is None else made[gradient]


def _constant(tensor: Any) -> tuple[bytes, tuple[int, ...]] | None:
    """The value of a small constant, which gradients like to know while they are built."""
    if tensor.op.type != "Const" or tensor.dtype not in (tf.int32, tf.int64, tf.float32):
        return None
    value = tf.get_static_value(tensor)
    return (value.tobytes(), value.shape) if value is not None and value.size <= 64 else None
