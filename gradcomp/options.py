"""The options that stand beside the codec, the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gradcomp import warmup
from gradcomp.bucket import DEFAULT_BUCKET_BYTES
from gradcomp.momentum import Momentum, take_from
from gradcomp.policy import Policy
from gradcomp.warmup import Warmup


@dataclass(frozen=True)
class Options:
    """How gradients are exchanged.

    Attributes:
      policy: the codec of each variable, or how it is reached.
      average: mean over ranks if True, else sum.
      error_feedback: keep what lossy codecs drop, and send it later; "momentum" with its momentum.
      bucket_bytes: raw bytes after which a bucket is full.
      seed: of the random bits of stochastic rounding.
      momentum: what `error_feedback="momentum"` has taken from the optimizer.
      backward_passes_per_step: gradients that an optimizer accumulates before it exchanges them.
      average_aggregated_gradients: use the mean of those, not their sum.
      gradient_predivide_factor: what uncompressed gradients are divided by before they are summed,
        and multiplied by afterwards.
      sparse_as_dense: make tensors of `tf.IndexedSlices` before the exchange.
      process_set: the ranks that exchange; None for all.
      hierarchical: sum within a host first, and exchange between hosts only.
    """

    policy: Policy | Warmup = field(default_factory=Policy)
    average: bool = True
    error_feedback: bool | str = True
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    seed: int = 0
    momentum: Momentum | None = None
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    gradient_predivide_factor: float = 1.0
    sparse_as_dense: bool = False
    process_set: tuple[int, ...] | None = None
    hierarchical: bool = False

    @property
    def times_accumulated(self) -> int:
        """What the mean of the accumulated gradients has to be multiplied by."""
        return 1 if self.average_aggregated_gradients else self.backward_passes_per_step

    def get_config(self) -> dict[str, Any]:
        """Plain values for JSON; `from_config` makes equal options of them."""
        config = {**vars(self), "policy": self.policy.get_config()}
        # The optimizer's own config has it.
        del config["momentum"]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Options:
        ranks = config.get("process_set")
        return cls(
            **{
                **config,
                "policy": warmup.from_config(config["policy"]),
                "process_set": None if ranks is None else tuple(ranks),
            }
        )


def with_momentum(optimizer: Any, options: Options) -> tuple[Options, list[Any] | None]:
    """Options with the optimizer's momentum, if they ask for it, and the velocities that it has.

    Raises:
      ValueError: the optimizer has none to give.
    """
    if options.error_feedback != "momentum":
        return options, None
    momentum, velocities = take_from(optimizer)
    return replace(options, momentum=momentum), velocities
