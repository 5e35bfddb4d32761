"""One bit an element."""

from dataclasses import dataclass

import numpy as np

from gradcomp.codecs import checks
from gradcomp.codecs.kernel import KernelCodec
from gradcomp.kernels import KernelParams
from gradcomp.reference import sign_scales


@dataclass(frozen=True)
class Sign(KernelCodec):
    """Sends the sign of every element, and the mean magnitude of each block as its scale.

    Every element decodes to plus or minus the scale: +0 to plus, -0 to minus. Meant for error
    feedback: without, small elements come back too large and large ones too small. A block with a
    value that is not finite decodes to NaN as a whole; one whose scale would be subnormal decodes
    to zeros.

    Args:
      block_size: elements that share a scale, a multiple of 32.

    Raises:
      CodecError: an option out of range.
    Error: how far an element's magnitude is from the mean of its block; not unbiased.
    Source: EF-SignSGD, arXiv:1901.09847, with blocks.
    """

    block_size: int = 512

    name = "sign"
    routes = ("dense", "all_gather", "two_phase")

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", checks.block_size(self.block_size))

    @property
    def cut(self) -> int:
        """The block size: a scale never crosses a cut."""
        return self.block_size

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        """float32 [n]: ||x| - scale|, the scale being that which is sent."""
        scale = np.repeat(sign_scales(x, self.block_size), self.block_size)[: x.size]
        exact = np.abs(np.abs(x).astype(np.float64) - scale)
        return np.nextafter(exact.astype(np.float32), np.float32(np.inf))

    def kernel_params(self, feedback: bool) -> KernelParams:
        """Signs."""
        return KernelParams("sign", block_size=self.block_size)
