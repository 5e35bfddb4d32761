"""Gradients of a function's ops that read packed activations in place of those of forward.

Inside `packing`, a graph gives the ops that read activations in backward a gradient of ours. It is
asked for when the function's backward graph is built, packs what the op's own gradient needs in the
forward graph, and unpacks it in the backward graph. Outside a function of its own, where the tape
runs in the same graph, TensorFlow never asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from gradcomp.activations import reach
from gradcomp.activations.backward import recipe
from gradcomp.activations.masks import PackedCodes, pack_codes, unpack_codes
from gradcomp.activations.pack import Packed, pack, packs, unpack
from gradcomp.codecs import Codec

_NAME = "GradcompPacked"
_NOTED = "GradcompNoted"
FLOATS = (tf.float32, tf.float16, tf.bfloat16)

# Ops whose gradient reads values of their inputs or outputs.
_NAMES = """
Abs Acos Acosh Asin Asinh Atan Atan2 Atanh AvgPool3DGrad BatchMatMul BatchMatMulV2 BatchMatMulV3
BesselI0e BesselI1e Betainc Conv2D Conv2DBackpropInput Conv3D Conv3DBackpropInputV2 Cos Cosh
CropAndResize Cross Cumprod DepthwiseConv2dNative Digamma Div DivNoNan Einsum Elu Erf Erfc Erfinv
Exp Expm1 FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 Igamma Inv L2Loss LRN LeakyRelu Lgamma
Log Log1p LogSoftmax MatMul Max MaxPool MaxPool3D MaxPoolV2 Maximum Min Minimum Mul MulNoNan Ndtri
Pow Prod RealDiv Reciprocal Relu Relu6 Rsqrt SegmentMax SegmentMin SegmentProd Select SelectV2
Selu Sigmoid Sign Sin Sinh Softmax SoftmaxCrossEntropyWithLogits Softplus Softsign
SparseSoftmaxCrossEntropyWithLogits Sqrt Square SquaredDifference Tan Tanh TopKV2
UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd Xdivy Xlog1py Xlogy
"""
OPS = tuple(_NAMES.split())

# Below it, a tensor costs more to pack than its bytes are worth; statistics are such tensors.
_MIN_NUMEL = 1024
_MIN_SHARE = 1 / 256
ASSUMED_DIM = 16  # for a dimension that is known only when the graph runs


@dataclass
class Session:
    """What packing does in one traced function.

    Attributes:
      graph: the function's, for forward.
      codec: None if nothing is to be packed, only watched.
      packed: what was packed, by name: the tensor and its payload.
      readers: the op whose gradient first read a tensor, by the tensor's name.
      backward: the backward graphs that were built, one for each output that has a gradient.
    """

    graph: Any
    codec: Codec | None
    packed: dict[str, tuple[Any, Packed | PackedCodes]] = field(default_factory=dict)
    readers: dict[str, Any] = field(default_factory=dict)
    backward: list[Any] = field(default_factory=list)

    @functools.cached_property
    def reach(self) -> reach.Reach:
        """Of the graph, which must be complete."""
        return reach.Reach(self.graph)

    @functools.cached_property
    def least(self) -> float:
        """Elements from which on a tensor is packed."""
        sizes = [numel(t) for op in self.graph.get_operations() for t in op.outputs]
        return max(_MIN_NUMEL, _MIN_SHARE * max(sizes, default=0))

    def large(self, tensor: Any) -> bool:
        """Whether it is an activation that is worth packing."""
        return numel(tensor) >= self.least and self.reach.is_activation(tensor)

    def chosen(self, tensor: Any) -> bool:
        """Whether it is packed: large, and a mask or floats that the codec makes smaller."""
        if self.codec is None or not self.large(tensor):
            return False
        if tensor.dtype == tf.bool:
            return True
        return tensor.dtype in FLOATS and packs(self.codec, tensor.dtype)

    def unpacked(self, tensor: Any, upstream: list[Any]) -> Any:
        """The tensor in the backward graph, from its payload, made after `upstream` exists."""
        root = reach.base(tensor)
        if root.name not in self.packed:
            with self._in_forward(), tf.device(root.device):
                self.packed[root.name] = root, self._pack(root)
        packed = self.packed[root.name][1]
        if isinstance(packed, PackedCodes):
            values = unpack_codes(packed, upstream)
        else:
            values = unpack(packed, upstream)
        if root is tensor:
            return values
        return tf.ensure_shape(tf.reshape(values, self.shape(tensor)), tensor.shape)

    def shape(self, tensor: Any) -> Any:
        """int32: the tensor's shape, for which the tensor itself is not kept."""
        if tensor.shape.is_fully_defined():
            return tf.constant(tensor.shape.as_list(), tf.int32)
        with self._in_forward():
            shape = tf.shape(tensor)
        return tf.identity(shape)

    def _pack(self, tensor: Any) -> Packed | PackedCodes:
        assert self.codec is not None
        return pack_codes(tensor, 1) if tensor.dtype == tf.bool else pack(tensor, self.codec)

    @contextlib.contextmanager
    def _in_forward(self) -> Iterator[None]:
        with self.graph.as_default(), tf.control_dependencies(None):
            yield


def numel(tensor: Any) -> int:
    """Elements of a tensor, as far as they are known."""
    if tensor.shape.rank is None:
        return ASSUMED_DIM
    return math.prod(ASSUMED_DIM if d is None else d for d in tensor.shape)


@contextlib.contextmanager
def packing(codec: Codec | None) -> Iterator[Session]:
    """Packs what ops made in the default graph, that of a function, will keep for backward.

    With None it only notes what they keep.
    """
    _register()
    graph = tf.compat.v1.get_default_graph()
    session = Session(graph, codec)
    graph.gradcomp_session = session
    with graph.gradient_override_map(dict.fromkeys(OPS, _NAME)):
        yield session


def noted(outputs: Any) -> Any:
    """A function's outputs, so passed on that its session learns of every backward graph."""
    graph = tf.compat.v1.get_default_graph()

    def note(x: Any) -> Any:
        return tf.identity(x) if tf.is_tensor(x) and x.dtype.is_floating else x

    with graph.gradient_override_map({"Identity": _NOTED}):
        return tf.nest.map_structure(note, outputs)


def _note(op: Any, upstream: Any) -> Any:
    """The gradient of such an output, which is asked for before any other."""
    op.graph.gradcomp_session.backward.append(tf.compat.v1.get_default_graph())
    return upstream


def _gradient(op: Any, *upstream: Any) -> list[Any]:
    """The gradient of any op in `OPS`."""
    session: Session = op.graph.gradcomp_session
    wanted = [i for i, t in enumerate(op.inputs) if session.reach.is_differentiable(t)]
    found = recipe(op, wanted)
    tensors = {f"in{i}:0": t for i, t in enumerate(op.inputs)}
    tensors |= {f"op:{i}": t for i, t in enumerate(op.outputs)}
    given = {
        f"dy{i}:0": tf.convert_to_tensor(dy)
        for i, (dy, y) in enumerate(zip(upstream, op.outputs, strict=True))
        if dy is not None and y.dtype.is_floating
    }

    def value(name: str) -> Any:
        if name.startswith("dy"):
            return given[name]
        tensor = tensors[name]
        session.readers.setdefault(reach.base(tensor).name, op)
        if session.chosen(tensor):
            return session.unpacked(tensor, list(given.values()))
        return tf.identity(tensor)

    def shape(name: str) -> Any:
        return session.shape(tensors[name])

    gradients: list[Any] = [None] * len(op.inputs)
    for i, gradient in zip(wanted, found.build(value, shape), strict=True):
        gradients[i] = gradient
    return gradients


_registered = False


def _register() -> None:
    global _registered
    if not _registered:
        tf.RegisterGradient(_NAME)(_gradient)
        tf.RegisterGradient(_NOTED)(_note)
        _registered = True
