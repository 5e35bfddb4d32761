"""How much of a GPU's multiprocessor a kernel can fill, from the limits that NVIDIA publishes."""

from typing import NamedTuple


class Limits(NamedTuple):
    """What a multiprocessor has. Source: CUDA C++ Programming Guide, "Compute Capabilities"."""

    warps: int
    blocks: int
    shared: int
    """Bytes of shared memory for all blocks together."""
    reserved: int
    """Bytes of shared memory that the system takes of each block's."""


REGISTERS = 65536
"""Of every multiprocessor below."""
REGISTERS_AT_ONCE = 256
"""Registers are given to warps in multiples of it."""
SHARED_AT_ONCE = {"sm_75": 256}
"""Shared memory is given to blocks in multiples of 128 bytes, or this."""

LIMITS = {
    "sm_75": Limits(32, 16, 64 << 10, 0),
    "sm_80": Limits(64, 32, 164 << 10, 1024),
    "sm_86": Limits(48, 16, 100 << 10, 1024),
    "sm_89": Limits(48, 24, 100 << 10, 1024),
    "sm_90": Limits(64, 32, 228 << 10, 1024),
    "sm_100": Limits(64, 32, 228 << 10, 1024),
    "sm_120": Limits(48, 24, 100 << 10, 1024),
}
"""The architectures that the kernels are compiled for."""


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def occupancy(arch: str, threads: int, registers: int, shared: int) -> float:
    """The share of a multiprocessor's warps that a kernel can have resident.

    Args:
      arch: a key of LIMITS.
      threads: of a block.
      registers: of a thread, as ptxas reports them.
      shared: bytes of a block, as ptxas reports them.
    """
    limits = LIMITS[arch]
    warps = -(-threads // 32)
    # Each of the four schedulers has a quarter of the registers and of the warps.
    resident = REGISTERS // 4 // _round_up(registers * 32, REGISTERS_AT_ONCE) * 4
    blocks = min(limits.blocks, limits.warps // warps, resident // warps)
    bytes_of_block = _round_up(shared + limits.reserved, SHARED_AT_ONCE.get(arch, 128))
    if bytes_of_block:
        blocks = min(blocks, limits.shared // bytes_of_block)
    return blocks * warps / limits.warps
