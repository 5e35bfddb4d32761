"""Masks and codes of 1, 2, 4 or 8 bits, several to a byte."""

from __future__ import annotations

from typing import Any

from gradcomp.cuda.libraries import empty, handle_of, library_of
from gradcomp.cuda.native import call, load
from gradcomp.cuda.views import check_numel, one_device, view

CODES = ("uint8", "bool")


def pack_bits(codes: Any, bits: int, *, packed: Any = None, stream: Any = None) -> Any:
    """Packs the low `bits` of each code, the first into the lowest bits of the first byte.

    Args:
      codes: uint8 or bool, of any shape, n elements.
      bits: 1, 2, 4 or 8.
      packed: uint8 [⌈n·bits/8⌉], written; by default the codes' library allocates it.
      stream: as for `encode`.
    Returns:
      `packed`, complete when the stream has come to it.
    Raises:
      As `encode`.
    """
    native = load()
    given = view(native, codes, "codes", CODES)
    size = call(native.packed_size, given.numel, bits)
    library = library_of(codes)
    device = one_device([given])
    handle = handle_of(stream, library, device)
    if packed is None:
        packed = empty("packed", size, library, device, handle)
    out = view(native, packed, "packed", ("uint8",), written=True)
    check_numel(out, size, f"{given.numel} codes of {bits} bits have")
    one_device([given, out])
    call(native.pack_bits, given.memory, bits, out.memory, device, handle)
    return packed


def unpack_bits(packed: Any, bits: int, codes: Any, *, stream: Any = None) -> None:
    """Writes the codes again.

    Args:
      packed: uint8 [⌈n·bits/8⌉], any bytes.
      bits: as packed.
      codes: uint8 or bool, of any shape, n elements; overwritten.
      stream: as for `encode`.
    Raises:
      As `encode`.
    """
    native = load()
    given = view(native, packed, "packed", ("uint8",))
    out = view(native, codes, "codes", CODES, written=True)
    size = call(native.packed_size, out.numel, bits)
    check_numel(given, size, f"{out.numel} codes of {bits} bits have")
    device = one_device([given, out])
    handle = handle_of(stream, library_of(codes), device)
    call(native.unpack_bits, given.memory, bits, out.memory, device, handle)
