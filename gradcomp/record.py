"""What a reducer's last step did with each gradient, kept where a compiled step can write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcomp.slots import slot

if TYPE_CHECKING:
    import tensorflow as tf

# How the last step ended.
NOTHING, DONE, NOT_FINITE, SKIPPED = range(4)


@dataclass(frozen=True)
class LastStep:
    """A step as it was recorded.

    Attributes:
      outcome: NOTHING where there was no step yet; NOT_FINITE where a reduced value was not, so
        that residuals stay as they were; SKIPPED where gradients weren't, so that nothing was sent.
      stage: of the warm-up.
      ranks: for each variable how many ranks had a gradient.
    """

    outcome: int
    stage: int
    ranks: tuple[int, ...]


class Record:
    """Three small assignments a step, and no collective: what ranks have to know they know already.

    Args:
      variables: how many there are.
    """

    def __init__(self, variables: int) -> None:
        import tensorflow as tf

        # Floats, which live and are assigned on any device.
        self._ranks = slot(tf.zeros(variables), "ranks")
        self._stage = slot(0.0, "stage")
        self._outcome = slot(float(NOTHING), "outcome")

    def write(
        self,
        ranks: tf.Tensor,
        finite: tf.Tensor | bool,
        stage: tf.Tensor | int = 0,
    ) -> None:
        """Records an exchange.

        Args:
          ranks: float32 [variables], how many ranks have a gradient.
          finite: bool scalar, whether all reduced values are.
          stage: int32 scalar, of the warm-up.
        """
        import tensorflow as tf

        self._ranks.assign(ranks)
        self._stage.assign(tf.cast(stage, tf.float32))
        self._outcome.assign(tf.where(finite, float(DONE), float(NOT_FINITE)))

    def skip_unless(self, finite: tf.Tensor) -> None:
        """Records that nothing is exchanged in this step, unless `finite`, a bool scalar."""
        import tensorflow as tf

        self._outcome.assign(tf.where(finite, self._outcome.read_value(), float(SKIPPED)))

    def read(self) -> LastStep:
        """What was recorded last, also while a step is traced."""
        import tensorflow as tf

        with tf.init_scope():
            outcome, stage = int(self._outcome.numpy()), int(self._stage.numpy())
            ranks = tuple(map(int, self._ranks.numpy().tolist()))
        return LastStep(outcome, stage, ranks)
