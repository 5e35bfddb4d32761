"""Codecs with a native kernel: one method says which."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradcomp import kernels
from gradcomp.codecs import checks
from gradcomp.codecs.base import Codec
from gradcomp.kernels import KernelParams


@dataclass(frozen=True)
class KernelCodec(Codec):
    """A codec whose work is done by one of the kernel families, for arrays and for tensors."""

    @abc.abstractmethod
    def kernel_params(self, feedback: bool) -> KernelParams:
        """The kernel, with or without error feedback."""

    def payload_size(self, numel: int) -> int:
        """Bytes that stand for `numel` elements, exactly."""
        numel = checks.integer("numel", numel, least=0)
        return kernels.payload_size(self.kernel_params(False), self._segments(numel))

    def encode_bucket(
        self,
        gradients: Sequence[Any],
        residuals: Sequence[Any] | None,
        segments: Any,
        rng: Sequence[Any],
    ) -> tuple[Any, list[Any] | None]:
        """As `Codec.encode_bucket`."""
        params = self.kernel_params(residuals is not None)
        return kernels.encode(params, gradients, residuals, segments, rng)

    def reduce_bucket(
        self,
        payloads: Any,
        world: int,
        residual: Any | None,
        segments: Any,
        rng: Sequence[Any],
        scale: Any,
    ) -> tuple[Any, Any | None]:
        """As `Codec.reduce_bucket`."""
        params = self.kernel_params(residual is not None)
        return kernels.reduce(params, payloads, world, residual, segments, rng, scale)

    def decode_bucket(
        self,
        payloads: Any,
        world: int,
        segments: Any,
        scale: Any,
        shapes: Sequence[tuple[Any, ...]],
        dtypes: Sequence[str],
    ) -> tuple[list[Any], Any]:
        """As `Codec.decode_bucket`."""
        params = self.kernel_params(False)
        return kernels.decode(params, payloads, world, segments, scale, shapes, dtypes)
