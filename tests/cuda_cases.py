"""What the tests of the CUDA kernels share: the comparison with the reference, and cases."""

from __future__ import annotations

import os
from collections.abc import Sequence

import cuda_library
import numpy as np
from kernel_cases import GUARD, RNG, Array, assert_same, dtype_of

from gradcomp import reference
from gradcomp.reference import KernelParams

SEEDS = (1, 2, 3)
"""Orders of threads."""

# AddressSanitizer guards whole allocations, and sees reads, too.
_GUARD_SIZE = 0 if "ASAN_OPTIONS" in os.environ else 64


class Placed:
    """A flat copy of an array at an address modulo 16, between guards that nobody may touch."""

    def __init__(self, array: Array, misalignment: int) -> None:
        size = _GUARD_SIZE + misalignment % 16 + array.nbytes + _GUARD_SIZE
        self._bytes = np.full(size + 16, GUARD, np.uint8)
        if _GUARD_SIZE == 0:
            self._bytes = np.full(size, GUARD, np.uint8)
        begin = _GUARD_SIZE + (misalignment - self._bytes.ctypes.data - _GUARD_SIZE) % 16
        self._inside = slice(begin, begin + array.nbytes)
        self.array: Array = self._bytes[self._inside].view(array.dtype)
        self.array[:] = array.reshape(-1)
        assert array.size == 0 or self.array.ctypes.data % 16 == misalignment % 16

    def check(self, name: str) -> None:
        outside = np.delete(self._bytes, self._inside)
        assert (outside == GUARD).all(), f"{name} was written past its ends"


def _tensor(array: Array, misalignment: int) -> Placed:
    return Placed(array, misalignment * array.itemsize)


def check_encode(
    params: KernelParams,
    gradients: Sequence[Array],
    residuals: Sequence[Array] | None,
    segments: Array,
    *,
    in_place: bool = False,
    misalignment: int = 0,
    tensor_misalignment: int = 0,
    seeds: Sequence[int] = (1,),
) -> Array:
    """Encodes as the reference does, for each order of threads; returns the payload.

    Args:
      in_place: new residuals replace the old.
      misalignment: of the payload, in bytes.
      tensor_misalignment: of the gradients and residuals, in elements.
    """
    payload, left = reference.encode(params, gradients, residuals, segments, RNG)
    for seed in seeds:
        cuda_library.set_seed(seed)
        inputs = [_tensor(g, tensor_misalignment) for g in gradients]
        old = None if residuals is None else [_tensor(r, tensor_misalignment) for r in residuals]
        new = old
        if residuals is not None and not in_place:
            new = [_tensor(np.full_like(r, 7), tensor_misalignment) for r in residuals]
        out = Placed(np.zeros_like(payload), misalignment)
        error = cuda_library.encode(
            params,
            [g.array for g in inputs],
            None if old is None else [r.array for r in old],
            None if new is None else [r.array for r in new],
            *(segments, RNG, out.array),
        )
        assert error == 0
        assert_same(out.array, payload, f"payload, seed {seed}")
        out.check("payload")
        for given, gradient in zip(inputs, gradients, strict=True):
            assert_same(given.array, gradient, "gradient")
        for got, want in zip(new or [], left or [], strict=True):
            assert_same(got.array, want.reshape(-1), f"residual, seed {seed}")
            got.check("residual")
        if not in_place:
            for kept, want in zip(old or [], residuals or [], strict=True):
                assert_same(kept.array, want, "the old residual")
    return payload


def check_decode(
    params: KernelParams,
    payloads: Array,
    world: int,
    segments: Array,
    numels: Sequence[int],
    scale: float = 1.0,
    dtypes: Sequence[str] | None = None,
    *,
    misalignment: int = 0,
    tensor_misalignment: int = 0,
    seeds: Sequence[int] = (1,),
) -> None:
    """Decodes and sums as the reference does, for each order of threads."""
    names = dtypes or ["float32"] * len(numels)
    shapes = [(n,) for n in numels]
    want, finite = reference.decode(params, payloads, world, segments, scale, shapes, names)
    for seed in seeds:
        cuda_library.set_seed(seed)
        given = Placed(payloads, misalignment)
        outputs = [
            _tensor(np.zeros(n, dtype_of(name)), tensor_misalignment)
            for n, name in zip(numels, names, strict=True)
        ]
        arrays = [o.array for o in outputs]
        got = cuda_library.decode(params, given.array, world, segments, scale, arrays)
        assert got == (0, finite, None)
        for output, array in zip(outputs, want, strict=True):
            assert_same(output.array, array, f"output, seed {seed}")
            output.check("output")
