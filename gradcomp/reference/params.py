"""Which kernel a payload belongs to, and how long it is; pure Python arithmetic."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

CASTS = {"float32": 4, "float16": 2, "bfloat16": 2}
"""The cast families, with the bytes an element takes on the wire."""

SCALED = ("float8_e4m3", "float8_e5m2", "quantize", "sign")
"""The families that send blocks of codes, each block with a scale."""

Row = Sequence[int]
"""One row of a segment table: (tensor, start, length, kept, stream)."""


class KernelParams(NamedTuple):
    """The kernel and its options; those that a family does not use are 0, False or ""."""

    family: str
    """One of CASTS, one of SCALED, or "topk"."""
    bits: int = 0
    """Bits a quantised value: 8, 4 or 2."""
    block_size: int = 0
    """Elements that share one scale, a multiple of 32."""
    stochastic: bool = False
    """Rounds to one of the two neighbours at random, so that the mean is exact."""
    values: str = ""
    """For "topk": the family that carries the kept values."""

    @property
    def of_values(self) -> "KernelParams":
        """The kernel that carries the kept values of "topk"."""
        return self._replace(family=self.values, values="")


def check_params(params: KernelParams) -> None:
    """Raises ValueError unless `params` names a kernel that exists, with just its options."""
    if params.family == "topk":
        if params.values not in (*CASTS, *SCALED):
            raise ValueError(f"topk cannot carry its values as {params.values!r}")
        return check_params(params.of_values)
    if params.family not in (*CASTS, *SCALED):
        raise ValueError(f"no kernel family {params.family!r}")
    if params.family in CASTS and params != KernelParams(params.family):
        raise ValueError(f"{params.family} takes no options, got {params}")
    if params.values:
        raise ValueError(f"{params.family} takes no values, got {params.values!r}")
    if params.family == "quantize":
        if params.bits not in (8, 4, 2):
            raise ValueError(f"bits must be 8, 4 or 2, got {params.bits}")
    elif params.bits or params.stochastic:
        raise ValueError(f"{params.family} takes a block_size only, got {params}")
    if params.family in SCALED and (params.block_size <= 0 or params.block_size % 32):
        raise ValueError(f"block_size must be a positive multiple of 32, got {params.block_size}")


def index_low_bits(numel: int, kept: int) -> int:
    """How many low bits of each index Elias–Fano stores as they are."""
    return (numel // kept).bit_length() - 1


def index_upper_bits(numel: int, kept: int) -> int:
    """Length in bits of Elias–Fano's second part."""
    return kept + ((numel - 1) >> index_low_bits(numel, kept))


def index_size(numel: int, kept: int) -> int:
    """Bytes that Elias–Fano takes for `kept` indices below `numel`; 1 <= kept <= numel."""
    low = (kept * index_low_bits(numel, kept) + 7) // 8
    return low + (index_upper_bits(numel, kept) + 7) // 8


def bits_of_code(params: KernelParams) -> int:
    """Bits that an element takes in a block; for the families in SCALED."""
    if params.family == "quantize":
        return params.bits
    return 1 if params.family == "sign" else 8


def segment_size(params: KernelParams, length: int, kept: int = 0) -> int:
    """Payload bytes of one segment of `length` elements, `kept` of them for "topk"."""
    if params.family == "topk":
        return index_size(length, kept) + segment_size(params.of_values, kept) if kept else 0
    if params.family in SCALED:
        blocks = -(-length // params.block_size)
        return 4 * blocks + (length * bits_of_code(params) + 7) // 8
    return CASTS[params.family] * length


def payload_size(params: KernelParams, segments: Iterable[Row]) -> int:
    """Payload bytes of a segment table: rows (tensor, start, length, kept, stream)."""
    return sum(segment_size(params, int(row[2]), int(row[3])) for row in segments)
