"""What a reducer has moved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """What a reducer has moved so far, on this rank.

    Attributes:
      steps: exchanges so far.
      raw_bytes: bytes that the same gradients would have sent uncompressed.
      sent_bytes: bytes sent, counted at the collectives; of a hierarchical exchange, those sent to
        other hosts.
      local_bytes: bytes that a hierarchical exchange sent within the host; 0 otherwise.
      compressed_numel, total_numel: parameters whose gradients are compressed, and all.
    """

    steps: int
    raw_bytes: int
    sent_bytes: int
    local_bytes: int
    compressed_numel: int
    total_numel: int

    @property
    def compression_ratio(self) -> float:
        """Raw bytes ÷ sent bytes; 1.0 where there was nothing to send."""
        return self.raw_bytes / self.sent_bytes if self.raw_bytes and self.sent_bytes else 1.0
