"""The families that send every element: for tensors, and for the values that top-k keeps."""

from gradcomp.reference.float8 import FORMATS, float8_decode, float8_encode
from gradcomp.reference.floats import Floats, Payload, cast_decode, cast_encode
from gradcomp.reference.params import KernelParams
from gradcomp.reference.quantize import quantize_decode, quantize_encode
from gradcomp.reference.sign import sign_decode, sign_encode
from gradcomp.reference.threefry import Stream


def block_encode(params: KernelParams, x: Floats, start: int, random: Stream) -> Payload:
    """uint8 [segment_size(params, n)] of float32 [n], canonical; `start` is the index of x[0]."""
    if params.family == "quantize":
        return quantize_encode(params, x, start, random)
    if params.family in FORMATS:
        return float8_encode(params, x)
    if params.family == "sign":
        return sign_encode(params, x)
    return cast_encode(params.family, x)


def block_decode(params: KernelParams, payload: Payload, numel: int) -> Floats:
    """float32 [numel] of such a payload."""
    if params.family == "quantize":
        return quantize_decode(params, payload, numel)
    if params.family in FORMATS:
        return float8_decode(params, payload, numel)
    if params.family == "sign":
        return sign_decode(params, payload, numel)
    return cast_decode(params.family, payload)
