"""A codec for tests that loses nothing and yet makes payloads smaller."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from gradcomp.codecs.array import ArrayCodec, RandomBits

_kept: dict[int, np.ndarray] = {}
_keys = itertools.count()


@dataclass(frozen=True)
class Stash(ArrayCodec):
    """A payload holds the number under which a tensor is kept in this process."""

    @property
    def lossless(self) -> bool:
        return True

    def payload_size(self, numel: int) -> int:
        return max(8, numel // 2)

    def encode_array(self, x: np.ndarray, random: RandomBits) -> np.ndarray:
        key = next(_keys)
        _kept[key] = np.array(x)
        payload = np.zeros(self.payload_size(len(x)), np.uint8)
        payload[:8] = np.array([key], np.int64).view(np.uint8)
        return payload

    def decode_array(self, payload: np.ndarray, numel: int) -> np.ndarray:
        return _kept[int(payload[:8].view(np.int64)[0])]


Stash.name = "stash"  # so late that it is not registered: other tests go through what is
