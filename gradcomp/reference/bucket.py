"""The three operations on a bucket, segment by segment: encode, decode-and-accumulate, reduce."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradcomp.reference.floats import Floats, Payload, canonical, cast_decode, to_dtype, widen
from gradcomp.reference.params import KernelParams
from gradcomp.reference.segment import SegmentCodec, as_segment_codec
from gradcomp.reference.threefry import Stream


class _Segment(NamedTuple):
    """One row of a segment table; `stream` seeds the random bits."""

    tensor: int
    start: int
    length: int
    kept: int
    stream: int


def _rows(codec: SegmentCodec, segments: ArrayLike) -> list[_Segment]:
    """The rows of a segment table, each checked by itself."""
    table = np.asarray(segments)
    if table.ndim != 2 or table.shape[1] != 5 or table.dtype != np.int64:
        raise ValueError(f"segments must be int64 [S, 5], got {table.dtype} {list(table.shape)}")
    rows = [_Segment(*row) for row in table.tolist()]
    for row in rows:
        if row.start < 0 or not 0 <= row.kept <= row.length or row.start % codec.cut:
            raise ValueError(f"{row} is out of range, or starts within a block of {codec.cut}")
    return rows


def _check_cover(rows: list[_Segment], numels: Sequence[int]) -> None:
    """Raises ValueError unless the rows cover every tensor once, in order."""
    filled = [0] * len(numels)
    last = 0
    for row in rows:
        if not last <= row.tensor < len(numels) or row.start != filled[row.tensor]:
            raise ValueError(f"{row} does not follow the one before it")
        filled[row.tensor] += row.length
        last = row.tensor
    if filled != list(numels):
        raise ValueError(f"the segments cover {filled} elements of tensors of {list(numels)}")


def _split(flat: Floats, sizes: Iterable[int]) -> list[Floats]:
    """Consecutive parts of `flat`, of the given sizes."""
    ends = itertools.accumulate(sizes, initial=0)
    return [flat[start:end] for start, end in itertools.pairwise(ends)]


def _encode_rows(
    codec: SegmentCodec, x: Floats, rows: list[_Segment], rng: Sequence[int]
) -> Payload:
    """The payloads of the segments that `x` consists of, one after the other."""
    seed, step, rank, phase = (int(word) for word in rng)
    payloads = [np.empty(0, np.uint8)]
    for row, part in zip(rows, _split(x, [row.length for row in rows]), strict=True):
        random = Stream(seed, step, rank, phase, row.stream)
        payloads.append(codec.encode(part, row.start, row.kept, random))
    return np.concatenate(payloads)


def _decode_rows(codec: SegmentCodec, payload: Payload, rows: list[_Segment]) -> Floats:
    """float32 [sum of lengths]: what one payload stands for."""
    values, at = [np.empty(0, np.float32)], 0
    for row in rows:
        size = codec.size(row.length, row.kept)
        values.append(codec.decode(payload[at : at + size], row.length, row.kept))
        at += size
    return np.concatenate(values)


def _accumulate(
    codec: SegmentCodec, payloads: Payload, world: int, rows: list[_Segment], scale: float
) -> Floats:
    """float32 [sum of lengths]: the sum of `world` payloads in rank order, times `scale`."""
    size = sum(codec.size(row.length, row.kept) for row in rows)
    if payloads.dtype != np.uint8 or payloads.shape != (world * size,) or world < 1:
        got = f"{payloads.dtype} {list(payloads.shape)}"
        raise ValueError(f"expected {world} payloads of {size} bytes, got {got}")
    with np.errstate(all="ignore"):
        total = _decode_rows(codec, payloads[:size], rows)
        for rank in range(1, world):
            total = total + _decode_rows(codec, payloads[rank * size : (rank + 1) * size], rows)
        return canonical(total * np.float32(scale))


def _left_over(x: Floats, sent: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return canonical(x - sent)


def _corrected(x: Floats, residual: Floats | None) -> Floats:
    if residual is None:
        return canonical(x)
    if residual.dtype != np.float32 or residual.size != x.size:
        got = f"{residual.dtype} {list(residual.shape)}"
        raise ValueError(f"expected a residual of {x.size} float32, got {got}")
    with np.errstate(all="ignore"):
        return canonical(x + residual.reshape(-1))


def encode(
    kernel: KernelParams | SegmentCodec,
    gradients: Sequence[NDArray[Any]],
    residuals: Sequence[Floats] | None,
    segments: ArrayLike,
    rng: Sequence[int],
) -> tuple[Payload, list[Floats] | None]:
    """Encodes a bucket; with residuals, of gradient + residual, and says what was left over.

    Args:
      kernel: the family and its options, or any segment codec.
      gradients: float32, float16 or bfloat16 arrays of any shape.
      residuals: float32 arrays of the same sizes, left as they are; None for no feedback.
      segments: int64 [S, 5]; the rows cover every tensor once, in order.
      rng: (seed, step, rank, phase).
    Returns:
      uint8 [payload size], and the new residuals in the gradients' shapes.
    Raises:
      ValueError: a table or a dtype that does not fit.
    """
    codec = as_segment_codec(kernel)
    rows = _rows(codec, segments)
    _check_cover(rows, [g.size for g in gradients])
    flat = [widen(g).reshape(-1) for g in gradients]
    old: Sequence[Floats | None] = [None] * len(flat) if residuals is None else residuals
    corrected = [_corrected(g, r) for g, r in zip(flat, old, strict=True)]
    # Rows are in the order of tensors, so that this is all rows end to end, too.
    x = np.concatenate([np.empty(0, np.float32), *corrected])
    payload = _encode_rows(codec, x, rows, rng)
    if residuals is None:
        return payload, None
    new = _split(_left_over(x, _decode_rows(codec, payload, rows)), [g.size for g in gradients])
    return payload, [r.reshape(g.shape) for r, g in zip(new, gradients, strict=True)]


def decode(
    kernel: KernelParams | SegmentCodec,
    payloads: Payload,
    world: int,
    segments: ArrayLike,
    scale: float,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
) -> tuple[list[NDArray[Any]], bool]:
    """Decodes `world` payloads, sums them in rank order and multiplies by `scale`.

    Args:
      payloads: uint8 [world * payload size].
      segments: int64 [S, 5]; the rows cover every tensor once, in order.
      shapes, dtypes: of the outputs; "bfloat16" gives uint16 bits unless NumPy knows that dtype.
    Returns:
      the outputs, and whether all of them are finite.
    Raises:
      ValueError: payloads of the wrong size, or bytes that no encoder writes.
    """
    codec = as_segment_codec(kernel)
    rows = _rows(codec, segments)
    numels = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    _check_cover(rows, numels)
    total = _accumulate(codec, payloads, world, rows, scale)
    outputs, finite = [], True
    for part, shape, dtype in zip(_split(total, numels), shapes, dtypes, strict=True):
        out = to_dtype(part, dtype)
        wide = out if dtype == "float32" else cast_decode(dtype, out.view(np.uint8))
        finite = finite and bool(np.isfinite(wide).all())
        outputs.append(out.reshape(shape))
    return outputs, finite


def reduce(
    kernel: KernelParams | SegmentCodec,
    payloads: Payload,
    world: int,
    residual: Floats | None,
    segments: ArrayLike,
    rng: Sequence[int],
    scale: float,
) -> tuple[Payload, Floats | None]:
    """The middle of a two-phase exchange: sums a chunk of all ranks' payloads and encodes the sum.

    Args:
      kernel: any but "topk".
      payloads: uint8 [world * payload size].
      residual: float32 [sum of lengths] of the chunk, left as it is; None for no feedback.
      segments: int64 [S, 5]: a contiguous run of a bucket's rows.
      rng: (seed, step, rank, phase).
      scale: multiplies the sum before it is encoded.
    Returns:
      uint8 [payload size], and the new residual.
    Raises:
      ValueError: "topk", payloads of the wrong size, a residual that does not fit.
    """
    codec = as_segment_codec(kernel)
    rows = _rows(codec, segments)
    if isinstance(kernel, KernelParams) and kernel.family == "topk":
        raise ValueError("topk cannot be reduced in two phases")
    x = _corrected(_accumulate(codec, payloads, world, rows, scale), residual)
    payload = _encode_rows(codec, x, rows, rng)
    if residual is None:
        return payload, None
    return payload, _left_over(x, _decode_rows(codec, payload, rows))
