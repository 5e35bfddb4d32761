"""A cast to half precision."""

from dataclasses import dataclass

import numpy as np

from gradcomp.codecs.kernel import KernelCodec
from gradcomp.kernels import KernelParams


@dataclass(frozen=True)
class FP16(KernelCodec):
    """Sends every element as float16, 2 bytes each.

    Finite values beyond ±65504 are sent as ±65504, so that what is cut off stays in the residual;
    inf and NaN are sent as they are. Values are widened before they are summed over ranks.

    Error: at most 2⁻¹¹ of the value, or 2⁻²⁵ where that is more; not unbiased.
    """

    name = "fp16"
    routes = ("dense", "all_gather", "two_phase")

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        """float32 [n]: 2⁻¹¹ of each magnitude, or what exceeds 65504."""
        magnitude = np.abs(x)
        rounding = np.maximum(magnitude * np.float32(2.0**-11), np.float32(2.0**-25))
        return np.maximum(rounding, magnitude - np.float32(65504))

    def kernel_params(self, feedback: bool) -> KernelParams:
        """The float16 cast."""
        return KernelParams("float16")
