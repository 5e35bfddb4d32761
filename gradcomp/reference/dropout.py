"""Dropout by a mask of a bit an element: which elements are kept, and what becomes of them.

Source: Philox4x32 with 10 rounds; Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradcomp.reference.floats import Payload, canonical, to_dtype, widen
from gradcomp.reference.threefry import Words

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def philox4x32(counter: Sequence[Words], key: Sequence[int]) -> list[Words]:
    """Four words of random bits for each counter.

    Args:
      counter: four uint32 arrays of equal shape.
      key: two ints below 2**32.
    Returns:
      four uint32 arrays of that shape.
    """
    x0, x1, x2, x3 = counter
    for r in range(10):
        k0, k1 = (np.uint32((k + r * weyl) & _WORD) for k, weyl in zip(key, _WEYL, strict=True))
        a, b = (x.astype(np.uint64) * m for x, m in zip((x0, x2), _MULTIPLIERS, strict=True))
        x0, x1 = _high(b) ^ x1 ^ k0, b.astype(np.uint32)
        x2, x3 = _high(a) ^ x3 ^ k1, a.astype(np.uint32)
    return [x0, x1, x2, x3]


def _high(x: NDArray[np.uint64]) -> Words:
    return (x >> np.uint64(32)).astype(np.uint32)


def draw_mask(
    key: int, counter: Sequence[int], fraction_bits: int, threshold: int, numel: int
) -> Payload:
    """uint8 [⌈numel/8⌉]: bit i mod 8 of byte ⌊i/8⌋ is set if element i is kept.

    Element i has word i mod 4 of the counter ⌊i/4⌋ after `counter`, and is kept where the low
    `fraction_bits` of that are `threshold` or more.

    Args:
      key: below 2**64.
      counter: its two words of 64 bits, low first.
      fraction_bits: 1 to 23.
      threshold: 0, which keeps all, to 2**fraction_bits, which keeps none.
    """
    first = counter[0] + (counter[1] << 64)
    each = [(first + i) % 2**128 for i in range(-(-numel // 4))]
    counters = [np.array([c >> 32 * w & _WORD for c in each], np.uint32) for w in range(4)]
    words = np.stack(philox4x32(counters, (key & _WORD, key >> 32)), axis=1).reshape(-1)[:numel]
    kept = words & np.uint32(2**fraction_bits - 1) >= threshold
    return np.packbits(kept, bitorder="little")


def apply_mask(x: NDArray[Any], packed: Payload, scale: float) -> NDArray[Any]:
    """`x` times `scale` in float32, rounded to its dtype, where its bit is set; else 0.

    Args:
      x: float32, float16 or bfloat16, n elements of any shape.
      packed: uint8 [⌈n/8⌉].
    """
    kept = np.unpackbits(packed, count=x.size, bitorder="little").reshape(x.shape)
    with np.errstate(all="ignore"):
        product = canonical(widen(x) * np.float32(scale))
    return to_dtype(np.where(kept == 1, product, np.float32(0)), x.dtype.name)
