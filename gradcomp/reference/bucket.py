"""The three operations on a bucket, segment by segment: encode, decode-and-accumulate, reduce."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradcomp.reference.floats import (
    Floats,
    Payload,
    canonical,
    cast_decode,
    cast_encode,
    to_dtype,
    widen,
)
from gradcomp.reference.params import KernelParams, check_params, payload_size, segment_size
from gradcomp.reference.quantize import quantize_decode, quantize_encode
from gradcomp.reference.threefry import Stream
from gradcomp.reference.topk import topk_decode, topk_encode


def _rows(params: KernelParams, segments: ArrayLike) -> list[list[int]]:
    """The rows of a segment table as Python ints, each checked by itself."""
    check_params(params)
    table = np.asarray(segments)
    if table.ndim != 2 or table.shape[1] != 5 or table.dtype != np.int64:
        raise ValueError(f"segments must be int64 [S, 5], got {table.dtype} {list(table.shape)}")
    rows: list[list[int]] = table.tolist()
    for row in rows:
        _, start, length, kept, _ = row
        most = length if params.family == "topk" else 0
        if start < 0 or length < 0 or not 0 <= kept <= most:
            raise ValueError(f"segment {row} is out of range")
        if params.family == "quantize" and start % params.block_size:
            raise ValueError(f"segment {row} does not start at a block of {params.block_size}")
    return rows


def _check_cover(rows: list[list[int]], numels: Sequence[int]) -> None:
    """Raises ValueError unless the rows cover every tensor once, in order."""
    filled = [0] * len(numels)
    last = 0
    for tensor, start, length, _, _ in rows:
        if not last <= tensor < len(numels) or start != filled[tensor]:
            raise ValueError(f"segment ({tensor}, {start}, {length}) does not follow the last one")
        filled[tensor] += length
        last = tensor
    if filled != list(numels):
        raise ValueError(f"the segments cover {filled} elements of tensors of {list(numels)}")


def _split(flat: Floats, sizes: Iterable[int]) -> list[Floats]:
    """Consecutive parts of `flat`, of the given sizes."""
    ends = itertools.accumulate(sizes, initial=0)
    return [flat[start:end] for start, end in itertools.pairwise(ends)]


def _encode_rows(
    params: KernelParams, parts: list[Floats], rows: list[list[int]], rng: Sequence[int]
) -> Payload:
    """The payloads of the segments' values, one after the other."""
    seed, step, rank, phase = (int(word) for word in rng)
    payloads = [np.empty(0, np.uint8)]
    for x, (_, start, _, kept, stream) in zip(parts, rows, strict=True):
        random = Stream(seed, step, rank, phase, stream)
        if params.family == "topk":
            payloads.append(topk_encode(params, x, kept, random))
        elif params.family == "quantize":
            payloads.append(quantize_encode(params, x, start, random))
        else:
            payloads.append(cast_encode(params.family, x))
    return np.concatenate(payloads)


def _decode_rows(params: KernelParams, payload: Payload, rows: list[list[int]]) -> Floats:
    """float32 [sum of lengths]: what one payload stands for."""
    values, at = [np.empty(0, np.float32)], 0
    for _, _, length, kept, _ in rows:
        size = segment_size(params, length, kept)
        part = payload[at : at + size]
        if params.family == "topk":
            values.append(topk_decode(params, part, length, kept))
        elif params.family == "quantize":
            values.append(quantize_decode(params, part, length))
        else:
            values.append(cast_decode(params.family, part))
        at += size
    return np.concatenate(values)


def _accumulate(
    params: KernelParams, payloads: Payload, world: int, rows: list[list[int]], scale: float
) -> Floats:
    """float32 [sum of lengths]: the sum of `world` payloads in rank order, times `scale`."""
    size = payload_size(params, rows)
    if payloads.dtype != np.uint8 or payloads.shape != (world * size,) or world < 1:
        got = f"{payloads.dtype} {list(payloads.shape)}"
        raise ValueError(f"expected {world} payloads of {size} bytes, got {got}")
    with np.errstate(all="ignore"):
        total = _decode_rows(params, payloads[:size], rows)
        for rank in range(1, world):
            total = total + _decode_rows(params, payloads[rank * size : (rank + 1) * size], rows)
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
    params: KernelParams,
    gradients: Sequence[NDArray[Any]],
    residuals: Sequence[Floats] | None,
    segments: ArrayLike,
    rng: Sequence[int],
) -> tuple[Payload, list[Floats] | None]:
    """Encodes a bucket; with residuals, of gradient + residual, and says what was left over.

    Args:
      params: which kernel.
      gradients: float32, float16 or bfloat16 arrays of any shape.
      residuals: float32 arrays of the same sizes, left as they are; None for no feedback.
      segments: int64 [S, 5]; the rows cover every tensor once, in order.
      rng: (seed, step, rank, phase).
    Returns:
      uint8 [payload_size(params, segments)], and the new residuals in the gradients' shapes.
    Raises:
      ValueError: a table or a dtype that does not fit.
    """
    rows = _rows(params, segments)
    _check_cover(rows, [g.size for g in gradients])
    flat = [widen(g).reshape(-1) for g in gradients]
    old: Sequence[Floats | None] = [None] * len(flat) if residuals is None else residuals
    corrected = [_corrected(g, r) for g, r in zip(flat, old, strict=True)]
    parts = [corrected[t][start : start + length] for t, start, length, _, _ in rows]
    payload = _encode_rows(params, parts, rows, rng)
    if residuals is None:
        return payload, None
    x = np.concatenate([np.empty(0, np.float32), *corrected])
    left = _left_over(x, _decode_rows(params, payload, rows))
    new = _split(left, [g.size for g in gradients])
    return payload, [r.reshape(g.shape) for r, g in zip(new, gradients, strict=True)]


def decode(
    params: KernelParams,
    payloads: Payload,
    world: int,
    segments: ArrayLike,
    scale: float,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
) -> tuple[list[NDArray[Any]], bool]:
    """Decodes `world` payloads, sums them in rank order and multiplies by `scale`.

    Args:
      payloads: uint8 [world * payload_size(params, segments)].
      segments: int64 [S, 5]; the rows cover every tensor once, in order.
      shapes, dtypes: of the outputs; "bfloat16" gives uint16 bits unless NumPy knows that dtype.
    Returns:
      the outputs, and whether all of them are finite.
    Raises:
      ValueError: payloads of the wrong size, or bytes that no encoder writes.
    """
    rows = _rows(params, segments)
    numels = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    _check_cover(rows, numels)
    total = _accumulate(params, payloads, world, rows, scale)
    outputs, finite = [], True
    for part, shape, dtype in zip(_split(total, numels), shapes, dtypes, strict=True):
        out = to_dtype(part, dtype)
        wide = out if dtype == "float32" else cast_decode(dtype, out.view(np.uint8))
        finite = finite and bool(np.isfinite(wide).all())
        outputs.append(out.reshape(shape))
    return outputs, finite


def reduce(
    params: KernelParams,
    payloads: Payload,
    world: int,
    residual: Floats | None,
    segments: ArrayLike,
    rng: Sequence[int],
    scale: float,
) -> tuple[Payload, Floats | None]:
    """The middle of a two-phase exchange: sums a chunk of all ranks' payloads and encodes the sum.

    Args:
      params: a cast or "quantize".
      payloads: uint8 [world * payload_size(params, segments)].
      residual: float32 [sum of lengths] of the chunk, left as it is; None for no feedback.
      segments: int64 [S, 5]: a contiguous run of a bucket's rows.
      rng: (seed, step, rank, phase).
      scale: multiplies the sum before it is encoded.
    Returns:
      uint8 [payload_size(params, segments)], and the new residual.
    Raises:
      ValueError: "topk", payloads of the wrong size, a residual that does not fit.
    """
    rows = _rows(params, segments)
    if params.family == "topk":
        raise ValueError("topk cannot be reduced in two phases")
    x = _corrected(_accumulate(params, payloads, world, rows, scale), residual)
    parts = _split(x, [row[2] for row in rows])
    payload = _encode_rows(params, parts, rows, rng)
    if residual is None:
        return payload, None
    return payload, _left_over(x, _decode_rows(params, payload, rows))
