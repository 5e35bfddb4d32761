"""Codes of 1, 2, 4 or 8 bits, several to a byte: masks, and positions in small windows."""

import numpy as np

from gradcomp.reference.floats import Payload


def pack_bits(codes: Payload, bits: int) -> Payload:
    """uint8 [⌈n·bits/8⌉] of uint8 [n]: code i from bit i·bits mod 8 of byte ⌊i·bits/8⌋ up.

    Of each code the low `bits` count; what is left of the last byte is 0.
    """
    each = codes.reshape(-1, 1) >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(each.reshape(-1), bitorder="little")


def unpack_bits(packed: Payload, bits: int, numel: int) -> Payload:
    """uint8 [numel] of the codes of any ⌈numel·bits/8⌉ bytes."""
    each = np.unpackbits(packed, count=numel * bits, bitorder="little").reshape(numel, bits)
    return (each << np.arange(bits, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)
