"""Masks of one bit an element."""

from typing import Any


def pack_mask(mask: Any) -> Any:
    """What is kept of a bool tensor."""
    return mask


def unpack_mask(mask: Any, shape: Any, after: Any) -> Any:
    """The bool tensor again."""
    return mask
