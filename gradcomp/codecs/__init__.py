"""The codecs, one a file; each is an immutable value. `codec` makes them of spec strings."""

from gradcomp.codecs.array import ArrayCodec, RandomBits
from gradcomp.codecs.auto import Auto
from gradcomp.codecs.base import Codec, codec, registered
from gradcomp.codecs.bf16 import BF16
from gradcomp.codecs.fp8 import FP8
from gradcomp.codecs.fp16 import FP16
from gradcomp.codecs.identity import Identity
from gradcomp.codecs.kernel import KernelCodec
from gradcomp.codecs.quantize import Quantize
from gradcomp.codecs.sign import Sign
from gradcomp.codecs.topk import TopK

__all__ = [
    "BF16",
    "FP8",
    "FP16",
    "ArrayCodec",
    "Auto",
    "Codec",
    "Identity",
    "KernelCodec",
    "Quantize",
    "RandomBits",
    "Sign",
    "TopK",
    "codec",
    "registered",
]
