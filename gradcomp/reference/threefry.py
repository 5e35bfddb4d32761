"""The counter-based random bits of stochastic rounding: Threefry4x32 with 12 rounds.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
_PARITY = 0x1BD11BDA
_WORD = 0xFFFFFFFF


def _rotate_left(x: Words, count: int) -> Words:
    return (x << np.uint32(count)) | (x >> np.uint32(32 - count))


def threefry4x32(counter: Sequence[Words], key: Sequence[int], rounds: int = 12) -> list[Words]:
    """Four words of random bits for each counter.

    Args:
      counter: four uint32 arrays of equal shape.
      key: four ints below 2**32.
      rounds: 20 for the published known answers, 12 on the wire.
    Returns:
      four uint32 arrays of that shape.
    """
    k0, k1, k2, k3 = key
    schedule = [np.uint32(k) for k in (k0, k1, k2, k3, _PARITY ^ k0 ^ k1 ^ k2 ^ k3)]
    x = [word + schedule[i] for i, word in enumerate(counter)]
    for r in range(rounds):
        left, right = _ROTATIONS[r % 8]
        a, b = (1, 3) if r % 2 == 0 else (3, 1)
        x[0] = x[0] + x[a]
        x[a] = _rotate_left(x[a], left) ^ x[0]
        x[2] = x[2] + x[b]
        x[b] = _rotate_left(x[b], right) ^ x[2]
        if r % 4 == 3:
            injection = r // 4 + 1
            x = [word + schedule[(injection + i) % 5] for i, word in enumerate(x)]
            x[3] = x[3] + np.uint32(injection)
    return x


class Stream(NamedTuple):
    """Whose random bits: one rank's, for one variable, at one step and phase."""

    seed: int
    step: int
    rank: int
    phase: int
    stream: int

    def bits(self, start: int, count: int) -> NDArray[np.uint16]:
        """16 random bits for each of the elements start .. start + count - 1 of a tensor.

        One counter gives eight elements, 16 apart; 16 counters fill 128 elements.
        """
        element = np.arange(start, start + count, dtype=np.int64)
        group, slot, lane = element // 128, (element % 128) // 16, element % 16
        first = start // 128 * 16
        last = (start + count + 127) // 128 * 16
        words = np.stack(self._words(np.arange(first, last, dtype=np.int64)))
        word = words[slot // 2, group * 16 + lane - first]
        half: Words = np.where(slot % 2 == 0, word, word >> np.uint32(16))
        return half.astype(np.uint16)

    def _words(self, c: NDArray[np.int64]) -> list[Words]:
        key = (
            self.seed & _WORD,
            (self.seed >> 32) & _WORD,
            self.step & _WORD,
            (self.step >> 32) & _WORD,
        )
        counter = (
            (c & _WORD).astype(np.uint32),
            (c >> 32).astype(np.uint32),
            np.full(c.shape, self.stream & _WORD, np.uint32),
            np.full(c.shape, (2 * self.rank + self.phase) & _WORD, np.uint32),
        )
        return threefry4x32(counter, key)
