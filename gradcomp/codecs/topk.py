"""Top-k sparsification."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradcomp import kernels
from gradcomp.codecs import checks
from gradcomp.codecs.base import codec
from gradcomp.codecs.bf16 import BF16
from gradcomp.codecs.fp8 import FP8
from gradcomp.codecs.fp16 import FP16
from gradcomp.codecs.identity import Identity
from gradcomp.codecs.kernel import KernelCodec
from gradcomp.codecs.quantize import Quantize
from gradcomp.codecs.sign import Sign
from gradcomp.errors import CodecError
from gradcomp.kernels import KernelParams
from gradcomp.reference import topk_select


@dataclass(frozen=True)
class TopK(KernelCodec):
    """Sends the elements of largest magnitude: their indices as Elias–Fano, their values nested.

    Of n elements the k = min(n, max(1, ⌈density·n⌉)) largest are sent, NaN above inf, ties to the
    lowest index. Meant for error feedback: without, what is not sent is lost.

    Args:
      density: the share that is sent, 0 < density ≤ 1.
      values: how the values are sent: Identity, FP16, BF16, FP8, Quantize or Sign, or a spec of
        one. With Sign that is sparse ternary compression, arXiv:1903.02891.
      select: "exact".

    Raises:
      CodecError: an option out of range.
    Error: |x| where an element is not sent, else that of `values`; not unbiased.
    Source: arXiv:1809.07599; indices as in arXiv:1206.4300.
    """

    density: float = 0.01
    values: KernelCodec = field(default=FP16())
    select: str = "exact"

    name = "topk"

    def __post_init__(self) -> None:
        density = checks.real("density", self.density)
        if not 0 < density <= 1:
            raise CodecError(f"density must be above 0 and at most 1, got {density}")
        values = codec(self.values)
        if not isinstance(values, Identity | FP16 | BF16 | FP8 | Quantize | Sign):
            raise CodecError(
                f"values must be Identity, FP16, BF16, FP8, Quantize or Sign, got {values!r}"
            )
        if self.select != "exact":
            raise CodecError(f"select must be 'exact', got {self.select!r}")
        object.__setattr__(self, "density", density)
        object.__setattr__(self, "values", values)

    def kept(self, numel: Any) -> Any:
        """k of `numel` elements; 0 of none."""
        if kernels.is_tensor(numel):
            import tensorflow as tf

            # The same operations of the same double precision give the same number.
            share = tf.math.ceil(self.density * tf.cast(numel, tf.float64))
            return tf.minimum(numel, tf.maximum(tf.cast(share, numel.dtype), 1))
        return min(numel, max(1, math.ceil(self.density * numel)))

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        """float32 [n]: |x| where an element is not sent, else the bound of `values`."""
        bound = np.abs(x)
        sent = topk_select(x, self.kept(x.size))
        bound[sent] = self.values.error_bound(x[sent])
        return bound

    def kernel_params(self, feedback: bool) -> KernelParams:
        """Selection, with the kernel of `values` nested."""
        values = self.values.kernel_params(feedback)
        return values._replace(family="topk", values=values.family)
