"""Block quantisation to 8, 4 or 2 bits."""

import functools
import warnings
from dataclasses import dataclass

import numpy as np

from gradcomp.codecs import checks
from gradcomp.codecs.kernel import KernelCodec
from gradcomp.errors import CodecError
from gradcomp.kernels import KernelParams


@dataclass(frozen=True)
class Quantize(KernelCodec):
    """Sends `bits` bits an element and one float32 scale a block.

    Each block is scaled so that its largest magnitude is the largest code, 2**(bits − 1) − 1. A
    block with a value that is not finite decodes to NaN as a whole; one whose scale would be
    subnormal decodes to zeros.

    Args:
      bits: 8, 4 or 2.
      block_size: elements that share a scale, a multiple of 32.
      stochastic: True rounds up or down at random, in proportion; False to nearest; None to
        nearest with error feedback, and at random without.

    Raises:
      CodecError: an option out of range.
    Error: half a scale an element to nearest, one at random, and then unbiased.
    Source: QSGD, arXiv:1610.02132, with blocks scaled by their largest magnitude.
    """

    bits: int = 8
    block_size: int = 256
    stochastic: bool | None = None

    name = "quantize"
    routes = ("dense", "all_gather", "two_phase")

    def __post_init__(self) -> None:
        bits = checks.integer("bits", self.bits)
        if bits not in (8, 4, 2):
            raise CodecError(f"bits must be 8, 4 or 2, got {bits}")
        block_size = checks.block_size(self.block_size)
        if not isinstance(self.stochastic, bool | np.bool_ | None):
            raise CodecError(f"stochastic must be True, False or None, got {self.stochastic!r}")
        stochastic = None if self.stochastic is None else bool(self.stochastic)
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "block_size", block_size)
        object.__setattr__(self, "stochastic", stochastic)

    @property
    def cut(self) -> int:
        """The block size: a scale never crosses a cut."""
        return self.block_size

    def unbiased(self, feedback: bool = False) -> bool:
        """Whether it rounds at random; the mean is exact up to 2⁻¹⁵ of a scale."""
        return not feedback if self.stochastic is None else self.stochastic

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        """float32 [n]: half a scale of each block, or a whole one at random."""
        blocks = -(-x.size // self.block_size)
        padded = np.zeros(blocks * self.block_size, np.float32)
        padded[: x.size] = np.abs(x)
        absmax = padded.reshape(blocks, self.block_size).max(axis=1, initial=0)
        scale = absmax / np.float32(2 ** (self.bits - 1) - 1)
        # The sum of the roundings on the way to a code and back is less than the last term.
        steps = (1.0 if self.unbiased() else 0.5) + 2.0**-14
        bound = np.where(scale < 2.0**-126, absmax, scale * np.float32(steps))
        return np.repeat(bound, self.block_size)[: x.size].astype(np.float32)

    def kernel_params(self, feedback: bool) -> KernelParams:
        """Block quantisation; warns where 2 bits at random meet feedback."""
        if feedback and self.stochastic and self.bits == 2:
            _warn_of_two_bits()
        return KernelParams("quantize", self.bits, self.block_size, self.unbiased(feedback))


@functools.cache
def _warn_of_two_bits() -> None:
    warnings.warn(
        "Quantize(bits=2, stochastic=True) with error feedback keeps a residual of up to 6 times "
        "the gradient's norm: leave stochastic=None, which rounds to nearest with feedback",
        stacklevel=2,
    )
