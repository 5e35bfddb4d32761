"""What a reducer has moved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """What a reducer has moved so far, on this rank.

    Attributes:
      steps: exchanges so far.
      raw_bytes: bytes that the same gradients would have sent uncompressed.
      sent_bytes: bytes sent, counted at the collectives.
      compressed_numel, total_numel: parameters whose gradients are compressed, and all.
    """

    steps: int
    raw_bytes: int
    sent_bytes: int
    compressed_numel: int
    total_numel: int

    @property
    def compression_ratio(self) -> float:
        """Raw bytes ÷ sent bytes; 1.0 where nothing was sent."""
        return self.raw_bytes / self.sent_bytes if self.sent_bytes else 1.0
