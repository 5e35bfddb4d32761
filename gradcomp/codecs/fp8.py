"""Floats of eight bits, one scale a block."""

from dataclasses import dataclass

import numpy as np

from gradcomp.codecs import checks
from gradcomp.codecs.kernel import KernelCodec
from gradcomp.errors import CodecError
from gradcomp.kernels import KernelParams

# Bits of the mantissa, exponent of the smallest normal number, largest number.
_FORMATS = {"e4m3": (3, -6, 448), "e5m2": (2, -14, 57344)}


@dataclass(frozen=True)
class FP8(KernelCodec):
    """Sends every element as a float of 8 bits, and one float32 scale a block.

    Each block is scaled so that its largest magnitude is the format's largest number. Values far
    below that keep their relative precision, where `Quantize` rounds to fractions of the largest. A
    block with a value that is not finite decodes to NaN as a whole; one whose scale would be
    subnormal decodes to zeros.

    Args:
      format: "e4m3": 3 bits of mantissa, over a range of about 2**18 in a block; or "e5m2": 2 bits,
        over about 2**32.
      block_size: elements that share a scale, a multiple of 32.

    Raises:
      CodecError: an option out of range.
    Error: at most 2⁻⁴ of the value (e5m2: 2⁻³), or 2⁻¹⁰ (2⁻¹⁷) of the scale where that is more; not
      unbiased.
    Source: arXiv:2209.05433.
    """

    format: str = "e4m3"
    block_size: int = 128

    name = "fp8"
    routes = ("dense", "all_gather", "two_phase")

    def __post_init__(self) -> None:
        if not isinstance(self.format, str) or self.format not in _FORMATS:
            raise CodecError(f"format must be 'e4m3' or 'e5m2', got {self.format!r}")
        object.__setattr__(self, "block_size", checks.block_size(self.block_size))

    @property
    def cut(self) -> int:
        """The block size: a scale never crosses a cut."""
        return self.block_size

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        """float32 [n]: half a step of the value's binade, at least that of subnormal numbers."""
        mantissa, least, largest = _FORMATS[self.format]
        blocks = -(-x.size // self.block_size)
        padded = np.zeros(blocks * self.block_size)
        padded[: x.size] = np.abs(x)
        absmax = padded.reshape(blocks, self.block_size).max(axis=1, initial=0)
        scale = np.repeat(absmax / largest, self.block_size)
        relative, least_step = 2.0 ** -(mantissa + 1), 2.0 ** (least - mantissa - 1)
        # And the other roundings on the way to a code and back, of subnormal numbers too.
        bound = np.maximum(padded * relative, scale * least_step) + padded * 2.0**-21 + 2.0**-149
        bound = np.where(scale < 2.0**-125, np.maximum(bound, padded), bound)
        return bound[: x.size].astype(np.float32)

    def kernel_params(self, feedback: bool) -> KernelParams:
        """Eight-bit floats."""
        return KernelParams(f"float8_{self.format}", block_size=self.block_size)
