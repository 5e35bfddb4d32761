"""The CPU kernels over NumPy arrays (csrc/python).

Arrays are C-contiguous, of any alignment; a wrong dtype, size or layout raises ValueError and names
the argument. The GIL is released while a kernel runs.
"""

from collections.abc import Sequence
from typing import Any

from numpy import float32, int64, uint8
from numpy.typing import NDArray

class Codec:
    """A kernel and its options; those that a family does not use stay at their defaults."""

    def __init__(
        self,
        family: str,
        bits: int = 0,
        block_size: int = 0,
        stochastic: bool = False,
        values: str = "",
    ) -> None:
        """Raises ValueError, naming the option that is invalid."""

def payload_size(codec: Codec, segments: NDArray[int64]) -> int:
    """Bytes of the payload of `segments`, [S, 5]: (tensor, start, length, kept, stream)."""

def encode(
    codec: Codec,
    gradients: Sequence[NDArray[Any]],
    residuals: Sequence[NDArray[float32]] | None,
    segments: NDArray[int64],
    rng: tuple[int, int, int, int],
    payload: NDArray[uint8],
) -> None:
    """Writes the payload of gradients + residuals, and what it loses of them to the residuals.

    Args:
      gradients: float32, float16 or bfloat16.
      segments: cover the gradients exactly and in order.
      rng: seed, step, rank, phase.
      payload: [payload_size(codec, segments)].
    """

def decode(
    codec: Codec,
    payloads: NDArray[uint8],
    world: int,
    segments: NDArray[int64],
    scale: float,
    outputs: Sequence[NDArray[Any]],
) -> bool:
    """Writes `scale` times the sum of `world` payloads; says whether all of it is finite.

    Args:
      payloads: [world * payload_size(codec, segments)], in rank order.
      outputs: float32, float16 or bfloat16; covered by `segments` exactly and in order.
    Raises:
      ValueError: also if the bytes are none that encode can have made.
    """

def reduce(
    codec: Codec,
    payloads: NDArray[uint8],
    world: int,
    residual: NDArray[float32] | None,
    segments: NDArray[int64],
    rng: tuple[int, int, int, int],
    scale: float,
    payload: NDArray[uint8],
) -> None:
    """Decodes and sums a chunk of `world` payloads as `decode`, and encodes it as `encode`.

    Args:
      residual: of the chunk's elements, flat; updated in place.
      segments: consecutive rows of a table.
    Raises:
      ValueError: also if the codec is top-k.
    """

def elias_fano_encode(positions: NDArray[Any], n: int, bytes: NDArray[uint8]) -> None:
    """Writes the code of increasing positions below n: top-k's indices alone."""

def elias_fano_decode(bytes: NDArray[uint8], n: int, positions: NDArray[Any]) -> None:
    """Reads as many positions below n as there is room for; ValueError if it is no such code."""

def pack_bits(codes: NDArray[uint8], bits: int, packed: NDArray[uint8]) -> None:
    """Writes the low `bits` (1, 2, 4 or 8) of each code, several to a byte."""

def unpack_bits(packed: NDArray[uint8], bits: int, codes: NDArray[uint8]) -> None:
    """Reads as many codes as there is room for."""

def draw_mask(
    key: int,
    counter: tuple[int, int],
    fraction_bits: int,
    threshold: int,
    numel: int,
    packed: NDArray[uint8],
) -> None:
    """Writes a bit for each of `numel` elements, set if dropout keeps it: `reference.draw_mask`."""

def apply_mask(x: NDArray[Any], packed: NDArray[uint8], scale: float, y: NDArray[Any]) -> None:
    """Writes x * scale where the element's bit is set, else 0; `y` may be `x`.

    Args:
      x: float32, float16 or bfloat16.
      y: as `x`.
    """

def philox4x32(
    key: tuple[int, int], counter: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    """The words of the generator that masks are drawn by, for known-answer tests."""

def set_num_threads(count: int) -> None:
    """How many threads work on kernels at once, callers included; 1 until it is set."""

def threefry4x32(
    key: tuple[int, int, int, int], counter: tuple[int, int, int, int], rounds: int
) -> tuple[int, int, int, int]:
    """The generator's words themselves, for known-answer tests; rounds is 12 or 20."""
