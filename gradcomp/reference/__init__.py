"""The definition of every kernel, in NumPy; the native ones equal it bit for bit."""

from gradcomp.reference.bits import pack_bits, unpack_bits
from gradcomp.reference.bucket import decode, encode, reduce
from gradcomp.reference.dropout import apply_mask, draw_mask, philox4x32
from gradcomp.reference.elias_fano import elias_fano_decode, elias_fano_encode
from gradcomp.reference.float8 import float8_decode, float8_encode
from gradcomp.reference.floats import Floats, Payload, cast_decode, cast_encode
from gradcomp.reference.params import KernelParams, check_params, payload_size, segment_size
from gradcomp.reference.quantize import quantize_decode, quantize_encode
from gradcomp.reference.segment import SegmentCodec
from gradcomp.reference.sign import sign_decode, sign_encode, sign_scales
from gradcomp.reference.threefry import Stream, threefry4x32
from gradcomp.reference.topk import topk_decode, topk_encode, topk_select

__all__ = [
    "Floats",
    "KernelParams",
    "Payload",
    "SegmentCodec",
    "Stream",
    "apply_mask",
    "cast_decode",
    "cast_encode",
    "check_params",
    "decode",
    "draw_mask",
    "elias_fano_decode",
    "elias_fano_encode",
    "encode",
    "float8_decode",
    "float8_encode",
    "pack_bits",
    "payload_size",
    "philox4x32",
    "quantize_decode",
    "quantize_encode",
    "reduce",
    "segment_size",
    "sign_decode",
    "sign_encode",
    "sign_scales",
    "threefry4x32",
    "topk_decode",
    "topk_encode",
    "topk_select",
    "unpack_bits",
]
