"""Where the ops of a graph that never runs are placed, and whether GPUs have kernels for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

# Elements from which a tensor is no table, shape or count.
_LARGE = 64


def operations(graph: Any) -> Iterator[Any]:
    """Those of a graph and of its functions."""
    for body in (graph, *(f.graph for f in graph._functions.values() if hasattr(f, "graph"))):
        yield from body.get_operations()


def placed(graph: Any, *prefixes: str) -> set[tuple[str, str]]:
    """Types of ops that begin so, with the kind and number of their device."""
    return {(op.type, op.device[-5:]) for op in operations(graph) if op.type.startswith(prefixes)}


def crossing(graph: Any) -> set[tuple[str, str, str]]:
    """(dtype, op, op) of large tensors that are made on one device and used on another."""
    return {
        (tensor.dtype.name, tensor.op.type, op.type)
        for op in operations(graph)
        for tensor in op.inputs
        if _is_large(tensor) and op.device and tensor.op.device
        if tensor.op.device[-5:] != op.device[-5:]
    }


def without_gpu_kernel(graph: Any) -> set[tuple[str, str]]:
    """(op, dtype) of what is placed on a GPU, but has large tensors in the host's memory.

    TensorFlow keeps int32 there in most of its ops. gradcomp's own ops are left out: their GPU
    kernels are not loaded here.
    """
    return {
        (op.type, tensor.dtype.name)
        for op in operations(graph)
        if "GPU" in op.device and not op.type.startswith("Gradcomp")
        for argument, tensor in _arguments(op)
        if _is_large(tensor) and not _is_on_device(op, argument)
    }


def _is_large(tensor: Any) -> bool:
    return tensor.dtype != tf.resource and (tensor.shape.num_elements() or 0) >= _LARGE


def _arguments(op: Any) -> Iterator[tuple[str, Any]]:
    for described, tensors in (
        (op.op_def.input_arg, list(op.inputs)),
        (op.op_def.output_arg, list(op.outputs)),
    ):
        for argument in described:
            count = 1
            if argument.number_attr:
                count = op.get_attr(argument.number_attr)
            elif argument.type_list_attr:
                count = len(op.get_attr(argument.type_list_attr))
            for _ in range(count):
                yield argument.name, tensors.pop(0)


def _is_on_device(op: Any, argument: str) -> bool:
    """Whether a kernel for GPUs takes the op's dtypes, and the argument in the GPU's memory."""
    return any(
        kernel.device_type in ("GPU", "DEFAULT")  # which is all devices
        and argument not in kernel.host_memory_arg
        and all(
            op.get_attr(one.name).as_datatype_enum in one.allowed_values.list.type
            for one in kernel.constraint
        )
        for kernel in get_registered_kernels_for_op(op.type).kernel
    )
