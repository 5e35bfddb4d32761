"""Loss scaling whose verdict is that of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from gradcomp.optimizer import DistributedOptimizer
from gradcomp.options import Options
from gradcomp.plan import Plan
from gradcomp.traffic import Traffic


@keras.saving.register_keras_serializable("gradcomp")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """`keras.optimizers.LossScaleOptimizer` around a distributed optimizer.

    Keras looks at the gradients of one rank. So a rank whose gradients overflow skips the step, and
    with it the exchange in which all others wait. Here ranks first tell each other whether theirs
    are finite: an overflow on one rank skips the step and lowers the scale on all, and no residual
    is touched. Gradients are unscaled before they are exchanged, so residuals don't change their
    meaning when the scale changes.

    Args:
      inner_optimizer: what `DistributedOptimizer` returned.
      initial_scale, dynamic_growth_steps, name: as in Keras.

    Raises:
      TypeError: `inner_optimizer` is not distributed.
    """

    def __init__(self, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(inner_optimizer, DistributedOptimizer):
            raise TypeError(
                "gc.LossScaleOptimizer goes around a distributed optimizer, got "
                f"{type(inner_optimizer).__name__}: use keras.optimizers.LossScaleOptimizer, or "
                "pass what DistributedOptimizer returned"
            )
        inner_optimizer.scaled_by_gradcomp = True
        super().__init__(inner_optimizer, *args, **kwargs)

    @property
    def options(self) -> Options:
        """How the inner optimizer exchanges gradients."""
        return self.inner_optimizer.options

    @property
    def plan(self) -> Plan:
        """What is sent for each variable; known once the optimizer is built. Print it."""
        return self.inner_optimizer.plan

    def traffic(self) -> Traffic:
        """Steps and bytes so far on this rank; skipped steps are not exchanged."""
        return self.inner_optimizer.traffic()

    def check_finite(self, grads: Sequence[Any]) -> Any:
        return self.inner_optimizer.everywhere(super().check_finite(grads))
