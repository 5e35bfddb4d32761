"""What the kernel tests share: odd buffers and numbers, and the comparison with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradcomp import _native, reference
from gradcomp.reference import KernelParams

Array = np.ndarray[Any, Any]

RNG = (0x0123456789ABCDEF, 77, 2, 0)
DTYPES = ("float32", "float16", "bfloat16")
CASTS = tuple(KernelParams(family) for family in DTYPES)

GUARD = 0xA5
GUARD_SIZE = 64


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class Guarded:
    """A copy of an array at any byte, between guards that nobody may touch."""

    def __init__(self, array: Array, misalignment: int = 0) -> None:
        begin = GUARD_SIZE + misalignment
        self._bytes = np.full(begin + array.nbytes + GUARD_SIZE, GUARD, np.uint8)
        self._inside = slice(begin, begin + array.nbytes)
        self.array: Array = np.ndarray(array.shape, array.dtype, self._bytes.data, begin)
        self.array[...] = array

    def check(self, name: str) -> None:
        outside = np.delete(self._bytes, self._inside)
        assert (outside == GUARD).all(), f"{name} was written past its ends"


def assert_same(got: Array, want: Array, what: str) -> None:
    """Equal bit for bit."""
    assert got.dtype == want.dtype and got.shape == want.shape, what
    if got.tobytes() != want.tobytes():
        bits = np.dtype(f"u{got.dtype.itemsize}")
        at = np.flatnonzero(got.reshape(-1).view(bits) != want.reshape(-1).view(bits))
        i = at[0]
        raise AssertionError(f"{what}: {len(at)} differ, first {i}: {got.flat[i]} {want.flat[i]}")


def one_row(numel: int, kept: int = 0, stream: int = 3) -> Array:
    """The table of one tensor in one piece."""
    return np.array([[0, 0, numel, kept, stream]], np.int64)


def check_encode(
    params: KernelParams,
    gradients: Sequence[Array],
    residuals: Sequence[Array] | None,
    segments: Array,
    rng: tuple[int, int, int, int] = RNG,
    misalignments: Sequence[int] = (0,),
) -> Array:
    """Encodes at each misalignment as the reference does; returns the payload."""
    payload, left = reference.encode(params, gradients, residuals, segments, rng)
    codec = _native.Codec(*params)
    assert _native.payload_size(codec, segments) == payload.size
    for misalignment in misalignments:
        inputs = [Guarded(g, misalignment) for g in gradients]
        kept = None if residuals is None else [Guarded(r, misalignment) for r in residuals]
        out = Guarded(np.zeros_like(payload), misalignment)
        arrays = None if kept is None else [k.array for k in kept]
        _native.encode(codec, [g.array for g in inputs], arrays, segments, rng, out.array)
        assert_same(out.array, payload, f"payload at {misalignment}")
        out.check("payload")
        for given, gradient in zip(inputs, gradients, strict=True):
            assert_same(given.array, gradient, "gradient")
        for got, want in zip(kept or [], left or [], strict=True):
            assert_same(got.array, want, f"residual at {misalignment}")
            got.check("residual")
    return payload


def check_decode(
    params: KernelParams,
    payloads: Array,
    world: int,
    segments: Array,
    numels: Sequence[int],
    scale: float = 1.0,
    dtypes: Sequence[str] | None = None,
    misalignments: Sequence[int] = (0,),
) -> bool:
    """Decodes at each misalignment as the reference does, or refuses as it does."""
    names = dtypes or ["float32"] * len(numels)
    codec = _native.Codec(*params)
    try:
        shapes = [(n,) for n in numels]
        want, finite = reference.decode(params, payloads, world, segments, scale, shapes, names)
    except ValueError:
        want, finite = None, False
    for misalignment in misalignments:
        given = Guarded(payloads, misalignment)
        outputs = [
            Guarded(np.zeros(n, dtype_of(name)), misalignment)
            for n, name in zip(numels, names, strict=True)
        ]
        arrays = [o.array for o in outputs]
        try:
            got = _native.decode(codec, given.array, world, segments, scale, arrays)
        except ValueError:
            assert want is None, "refused what the reference decodes"
        else:
            assert want is not None, "decoded what the reference refuses"
            assert got == finite
            for output, array in zip(outputs, want, strict=True):
                assert_same(output.array, array, f"output at {misalignment}")
        for output in outputs:
            output.check("output")
    return want is not None


def check_reduce(
    params: KernelParams,
    payloads: Array,
    world: int,
    residual: Array | None,
    segments: Array,
    scale: float,
    misalignments: Sequence[int] = (0,),
) -> None:
    """Reduces at each misalignment as the reference does."""
    rng = (*RNG[:3], 1)
    payload, left = reference.reduce(params, payloads, world, residual, segments, rng, scale)
    for misalignment in misalignments:
        given = Guarded(payloads, misalignment)
        kept = None if residual is None else Guarded(residual, misalignment)
        out = Guarded(np.zeros_like(payload), misalignment)
        array = None if kept is None else kept.array
        codec = _native.Codec(*params)
        _native.reduce(codec, given.array, world, array, segments, rng, scale, out.array)
        assert_same(out.array, payload, "payload")
        out.check("payload")
        if kept is not None and left is not None:
            assert_same(kept.array, left, "residual")
            kept.check("residual")


SPECIAL_BITS = np.array(
    [
        *(0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001),  # zero to the least normal
        *(0x33000000, 0x33000001, 0x387FC000, 0x387FE000, 0x38800000),  # the least halves
        *(0x477FE000, 0x477FEFFF, 0x477FF000, 0x7F7F7FFF, 0x7F7F8000),  # largest half and bfloat16
        *(0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF),  # largest, inf, NaNs
        *(0x3F800000, 0x3F000000, 0x3FC00000, 0x40600000, 0x41000008),
    ],
    np.uint32,
)


def numbers(kind: str, numel: int, seed: int = 0, dtype: str = "float32") -> Array:
    """`numel` numbers of a kind: normal, ties, tiny, huge, special or bits."""
    rng = np.random.default_rng([seed, numel])
    x = (rng.standard_normal(numel) * rng.standard_normal(numel)).astype(np.float32)
    if kind == "ties":
        x = np.round(x * 2) / 2
    elif kind == "tiny":
        x *= np.float32(2e-38)
    elif kind == "huge":
        x = np.clip(x, -3, 3) * np.float32(1.1e38)
    elif kind == "special":
        bits = rng.choice(SPECIAL_BITS, numel) | rng.choice([0, 1 << 31], numel).astype(np.uint32)
        x = np.where(rng.random(numel) < 0.3, bits.view(np.float32), x)
    elif kind == "bits":
        x = rng.integers(0, 2**32, numel, np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        return x.astype(dtype_of(dtype))


KINDS = ("normal", "ties", "tiny", "huge", "special", "bits")


def float_arrays(numel: int) -> st.SearchStrategy[Array]:
    """float32 [numel] of any bits, often special ones."""
    bits = st.one_of(
        st.integers(0, 2**32 - 1),
        st.sampled_from([int(b) for b in SPECIAL_BITS]),
        st.sampled_from([int(b) | 1 << 31 for b in SPECIAL_BITS]),
    )
    return hnp.arrays(np.uint32, numel, elements=bits).map(lambda a: a.view(np.float32))


@st.composite
def tables(draw: st.DrawFn, cut: int, *, keeps: bool = False) -> tuple[list[int], Array]:
    """Sizes of some tensors, and a table that covers them, some of them cut at multiples of `cut`.

    With `keeps`, rows keep any number of their elements.
    """
    sizes = draw(st.lists(st.integers(0, 3 * cut + 5), min_size=1, max_size=4))
    rows = []
    for tensor, size in enumerate(sizes):
        inner = [at for at in range(cut, size, cut) if draw(st.booleans())]
        for start, end in zip([0, *inner], [*inner, size], strict=True):
            kept = draw(st.integers(0, end - start)) if keeps else 0
            rows.append([tensor, start, end - start, kept, draw(st.integers(0, 2**31))])
    return sizes, np.array(rows, np.int64)


def check_numbers(params: KernelParams, kind: str, dtype: str) -> None:
    """A thousand numbers of a kind, in a gradient's dtype, encoded both ways and decoded."""
    numel = 1000
    g, r = numbers(kind, numel, 1, dtype), numbers(kind, numel, 2)
    payload = check_encode(params, [g], [r], one_row(numel))
    check_encode(params, [g], None, one_row(numel))
    check_decode(params, payload, 1, one_row(numel), [numel], 1.0, [dtype])


def check_any_bucket(params: KernelParams, data: st.DataObject) -> None:
    """A bucket that hypothesis draws, through all three operations, at one misalignment."""
    sizes, table = data.draw(tables(params.block_size or 32))
    gradients = [data.draw(float_arrays(n)) for n in sizes]
    residuals = [data.draw(float_arrays(n)) for n in sizes]
    misalignment = [data.draw(st.integers(0, 63))]
    one = check_encode(params, gradients, residuals, table, RNG, misalignment)
    two = check_encode(params, residuals, None, table, RNG, misalignment)
    dtypes = [data.draw(st.sampled_from(DTYPES)) for _ in sizes]
    both = np.concatenate([one, two])
    check_decode(params, both, 2, table, sizes, 0.5, dtypes, misalignment)
    check_reduce(params, both, 2, np.concatenate(residuals), table, 0.5, misalignment)


def check_any_bytes(params: KernelParams, numel: int, world: int, random: Any) -> None:
    """Payloads that no encoder wrote: they decode to what the oracle makes of them."""
    table = one_row(numel)
    size = world * _native.payload_size(_native.Codec(*params), table)
    payloads = np.frombuffer(random.randbytes(size), np.uint8)
    assert check_decode(params, payloads, world, table, [numel], 0.7, misalignments=[0, 1])
    check_reduce(params, payloads, world, None, table, 0.7)
