"""What the bucket operations ask of a codec, and the kernel families as such codecs."""

from typing import Protocol

from gradcomp.reference.block import block_decode, block_encode
from gradcomp.reference.floats import Floats, Payload
from gradcomp.reference.params import KernelParams, check_params, segment_size
from gradcomp.reference.threefry import Stream
from gradcomp.reference.topk import topk_decode, topk_encode


class SegmentCodec(Protocol):
    """Encodes one segment, a run of elements of one tensor, into bytes of its own."""

    @property
    def cut(self) -> int:
        """Segments start at multiples of it."""

    def size(self, length: int, kept: int) -> int:
        """Payload bytes of a segment."""

    def encode(self, x: Floats, start: int, kept: int, random: Stream) -> Payload:
        """uint8 [size(n, kept)] of float32 [n], canonical; `start` is the index of x[0]."""

    def decode(self, payload: Payload, length: int, kept: int) -> Floats:
        """float32 [length] of such a payload; ValueError if no encoder writes it."""


class Family:
    """A kernel family as a segment codec."""

    def __init__(self, params: KernelParams) -> None:
        check_params(params)
        self.params = params
        self.cut = 1 if params.family == "topk" else params.block_size or 1

    def size(self, length: int, kept: int) -> int:
        """Payload bytes of a segment."""
        return segment_size(self.params, length, kept)

    def encode(self, x: Floats, start: int, kept: int, random: Stream) -> Payload:
        """uint8 [size(n, kept)] of float32 [n], canonical."""
        if self.params.family == "topk":
            return topk_encode(self.params, x, kept, random)
        return block_encode(self.params, x, start, random)

    def decode(self, payload: Payload, length: int, kept: int) -> Floats:
        """float32 [length]."""
        if self.params.family == "topk":
            return topk_decode(self.params, payload, length, kept)
        return block_decode(self.params, payload, length)


def as_segment_codec(kernel: KernelParams | SegmentCodec) -> SegmentCodec:
    """The segment codec of a kernel family; any other is returned as it is."""
    return Family(kernel) if isinstance(kernel, KernelParams) else kernel
