"""A cast to bfloat16."""

from dataclasses import dataclass

import numpy as np

from gradcomp.codecs.kernel import KernelCodec
from gradcomp.kernels import KernelParams


@dataclass(frozen=True)
class BF16(KernelCodec):
    """Sends every element as bfloat16, 2 bytes each: float32's range at 8 bits of precision.

    Finite values that would round to infinity are sent as the largest finite bfloat16; inf and
    NaN are sent as they are.

    Error: at most 2⁻⁸ of the value, or 2⁻¹³⁴ where that is more; not unbiased.
    """

    name = "bf16"
    routes = ("dense", "all_gather", "two_phase")

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        """float32 [n]: 2⁻⁸ of each magnitude."""
        return np.maximum(np.abs(x) * np.float32(2.0**-8), np.float32(2.0**-134))

    def kernel_params(self, feedback: bool) -> KernelParams:
        """The bfloat16 cast."""
        return KernelParams("bfloat16")
