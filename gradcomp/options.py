"""The options that stand beside the codec, the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradcomp.bucket import DEFAULT_BUCKET_BYTES
from gradcomp.policy import Policy


@dataclass(frozen=True)
class Options:
    """How gradients are exchanged.

    Attributes:
      policy: the codec of each variable.
      average: mean over ranks if True, else sum.
      error_feedback: keep what lossy codecs drop, and send it later.
      bucket_bytes: raw bytes after which a bucket is full.
      seed: of the random bits of stochastic rounding.
    """

    policy: Policy = field(default_factory=Policy)
    average: bool = True
    error_feedback: bool = True
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    seed: int = 0

    def get_config(self) -> dict[str, Any]:
        """Plain values for JSON; `from_config` makes equal options of them."""
        return {**vars(self), "policy": self.policy.get_config()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Options:
        return cls(**{**config, "policy": Policy.from_config(config["policy"])})
