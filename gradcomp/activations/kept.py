"""What a packed function keeps for backward, and what packing could not reach."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gradcomp.activations.override import FLOATS, Session, numel
from gradcomp.activations.reach import base
from gradcomp.plan import as_text

# TensorFlow makes zeros for outputs without a gradient; what is inlined keeps nothing for them.
_SHAPE_ONLY = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike")
_LOOPS = ("While", "StatelessWhile")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_NAMES = 3  # that a warning lists


@dataclass(frozen=True)
class Row:
    """A tensor that is kept.

    Attributes:
      name, shape, dtype: the tensor's, in the function's graph.
      kept: the codec's spec, or why it is kept as it is.
      raw, bytes: what it takes without packing, and what it takes.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    kept: str
    raw: int
    bytes: int


@dataclass(frozen=True)
class Kept:
    """Activations that a function keeps for backward; weights are none. `print` shows a table.

    Bytes are those of the shapes that the function was traced with, where a dimension that is
    known only in a run counts as 16.

    Attributes:
      codec: its spec.
      packed: tensors that are kept packed.
      rest: those of at least 1,024 elements that are kept as they are.
    """

    codec: str
    packed: tuple[Row, ...]
    rest: tuple[Row, ...]

    @classmethod
    def of(cls, session: Session) -> Kept:
        packed = tuple(_row(root, session.codec) for root, _ in session.packed.values())
        spec = "none" if session.codec is None else session.codec.spec
        rest = {}
        for graph in session.backward:
            for tensor in _whole(session, graph):
                root = base(tensor)
                if root.name not in rest and session.reach.is_activation(root):
                    rest[root.name] = _row(root, None, _why(root, session))
        return cls(spec, packed, tuple(rest.values()))

    @property
    def raw(self) -> int:
        """Bytes without packing."""
        return sum(row.raw for row in (*self.packed, *self.rest))

    @property
    def bytes(self) -> int:
        """Bytes that are kept."""
        return sum(row.bytes for row in (*self.packed, *self.rest))

    def __str__(self) -> str:
        from rich.table import Table

        table = Table(title="Activations kept for backward", show_footer=True)
        table.add_column("tensor", "total", overflow="fold")
        table.add_column("shape", justify="right")
        table.add_column("dtype")
        table.add_column("kept as")
        table.add_column("bytes before", f"{self.raw:,}", justify="right")
        table.add_column("after", f"{self.bytes:,}", justify="right")
        for row in (*self.packed, *self.rest):
            shape = "×".join("?" if d is None else str(d) for d in row.shape)
            raw, after = f"{row.raw:,}", f"{row.bytes:,}"
            table.add_row(row.name, shape, row.dtype, row.kept, raw, after)
        return as_text(table).rstrip()


def tell_unreached(session: Session, name: str) -> None:
    """Warns of what a function saves by means that packing has no part in."""
    found = list(_unreached(session))
    if not found:
        return
    listed = "; ".join(found[:_NAMES])
    if len(found) > _NAMES:
        listed += f"; and {len(found) - _NAMES} more"
    warnings.warn(
        f"auto_pack can't reach some activations of {name}, which stay as they are: {listed}. "
        "`report()` has their bytes; gc.pack_activations packs layers as a whole",
        stacklevel=2,
    )


def _unreached(session: Session) -> Iterator[str]:
    for op in session.graph.get_operations():
        if not any(_matters(t, session) for t in op.inputs):
            continue
        if op.type in _LOOPS:
            yield f"the loop {op.name}"
        elif op.type in _CALLS:
            yield f"the tf.function {op.get_attr('f').name}"
        elif op.type == "IdentityN" and _gradient_type(op).startswith("CustomGradient"):
            yield f"the custom gradient {op.name}"


def _matters(tensor: Any, session: Session) -> bool:
    """Whether it is a large float activation, or a list of activations, as loops are given."""
    if tensor.dtype == tf.variant:
        return session.reach.is_activation(tensor)
    return tensor.dtype.is_floating and session.large(tensor)


def _gradient_type(op: Any) -> str:
    if "_gradient_op_type" not in op.node_def.attr:
        return ""
    return str(op.get_attr("_gradient_op_type").decode())


def _whole(session: Session, backward: Any) -> Iterator[Any]:
    """Forward's tensors of many elements that a backward graph is given as they are."""
    payloads = {id(part) for _, packed in session.packed.values() for part in packed.parts}
    for tensor in captured(session, backward):
        if id(tensor) not in payloads and numel(tensor) >= session.least:
            yield tensor


def captured(session: Session, backward: Any) -> Iterator[Any]:
    """Forward's tensors that a backward graph reads, weights among them; not only their shapes."""
    for outer, inner in backward.captures:
        if getattr(outer, "graph", None) is not session.graph:
            continue
        if outer.dtype in (tf.resource, tf.variant):
            continue
        if any(use.type not in _SHAPE_ONLY for use in inner.consumers()):
            yield outer


def _why(tensor: Any, session: Session) -> str:
    if not tensor.dtype.is_floating:
        return "as it is"
    if tensor.dtype not in FLOATS:
        return f"as it is: no codec takes {tensor.dtype.name}"
    if session.chosen(tensor):
        return "as it is: out of reach"
    spec = "none" if session.codec is None else session.codec.spec
    return f"as it is: {spec} makes it no smaller"


def _row(tensor: Any, codec: Any, why: str = "") -> Row:
    size = numel(tensor)
    raw = size * tensor.dtype.size
    shape = (None,) if tensor.shape.rank is None else tuple(tensor.shape)
    if codec is None:
        kept, after = why, raw
    elif tensor.dtype == tf.bool:
        kept, after = "1 bit", -(-size // 8)
    else:
        kept, after = codec.spec, codec.payload_size(size)
    return Row(tensor.name, shape, tensor.dtype.name, kept, raw, after)
