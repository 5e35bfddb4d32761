"""The CUDA kernels on raw device pointers and a stream (csrc/python/cuda_module.cc).

Importing it needs neither a GPU nor a driver. A tensor is (pointer, dtype, numel), of dtype
"float32", "float16" or "bfloat16" and aligned to its elements; memory is (pointer, bytes). Kernels
are put on `stream`, a cudaStream_t of `device`, and nothing waits for them: the memory has to stay
until they are done. What doesn't fit is a ValueError that names it, and what CUDA says a
RuntimeError. `gradcomp.cuda` takes arrays instead.
"""

from collections.abc import Sequence
from typing import Any

from numpy import int64
from numpy.typing import NDArray

REPORT_BYTES: int
WORKSPACE_ALIGNMENT: int

class Codec:
    """As `gradcomp._native.Codec`."""

    def __init__(
        self,
        family: str,
        bits: int = 0,
        block_size: int = 0,
        stochastic: bool = False,
        values: str = "",
    ) -> None:
        """Raises ValueError, naming the option that is invalid."""

def devices() -> tuple[int, str]:
    """How many GPUs there are and, where there is none, why."""

def runtime_version() -> int:
    """Of the CUDA runtime that is linked in: 13000 is 13.0."""

def pointer_device(pointer: int) -> int:
    """The device that the memory belongs to, -1 for the host's."""

def read_dlpack(capsule: Any) -> tuple[int, str, tuple[int, ...], tuple[int, ...] | None]:
    """Pointer, dtype, shape and strides (in elements; None: C order) of a capsule, not consumed."""

def payload_size(codec: Codec, segments: NDArray[int64]) -> int:
    """Bytes of the payload of `segments`, [S, 5]: (tensor, start, length, kept, stream)."""

def encode_workspace(codec: Codec, segments: NDArray[int64]) -> int:
    """Bytes of workspace that `encode` needs, with residuals or without."""

def decode_workspace(codec: Codec, segments: NDArray[int64], world: int) -> int:
    """Bytes of workspace that `decode` of so many payloads needs."""

def encode(
    codec: Codec,
    gradients: Sequence[tuple[int, str, int]],
    residuals: Sequence[int] | None,
    new_residuals: Sequence[int] | None,
    segments: NDArray[int64],
    rng: tuple[int, int, int, int],
    payload: tuple[int, int],
    workspace: tuple[int, int],
    device: int,
    stream: int,
) -> None:
    """Writes the payload of gradients + residuals, and what it loses of them to new_residuals.

    Args:
      residuals, new_residuals: pointers to float32 of the gradients' sizes; they may be the same.
      segments: cover the gradients exactly and in order.
      rng: seed, step, rank, phase.
      payload: of payload_size(codec, segments) bytes.
      workspace: at least encode_workspace(...) bytes, aligned to WORKSPACE_ALIGNMENT.
    """

def decode(
    codec: Codec,
    payloads: tuple[int, int],
    world: int,
    segments: NDArray[int64],
    scale: float,
    outputs: Sequence[tuple[int, str, int]],
    report: int,
    workspace: tuple[int, int],
    device: int,
    stream: int,
) -> None:
    """Writes `scale` times the sum of `world` payloads, in rank order, to the outputs.

    Args:
      payloads: of world * payload_size(codec, segments) bytes.
      report: REPORT_BYTES of device memory for `read_report`, aligned to 4.
      workspace: at least decode_workspace(...) bytes, aligned to WORKSPACE_ALIGNMENT.
    """

def packed_size(count: int, bits: int) -> int:
    """Bytes of `count` codes of 1, 2, 4 or 8 bits."""

def pack_bits(
    codes: tuple[int, int], bits: int, packed: tuple[int, int], device: int, stream: int
) -> None:
    """Packs the low `bits` of each byte of `codes` into `packed_size(codes, bits)` bytes."""

def unpack_bits(
    packed: tuple[int, int], bits: int, codes: tuple[int, int], device: int, stream: int
) -> None:
    """Writes a byte a code again."""

def read_report(report: int, device: int, stream: int) -> tuple[bool, int | None]:
    """Waits for the stream; whether all outputs are finite, and the first row of bad bytes."""
