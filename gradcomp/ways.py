"""What an `Auto` has chosen, where a compiled step can read it and choose anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradcomp.chooser import Chooser
from gradcomp.slots import slot

if TYPE_CHECKING:
    import tensorflow as tf


class Ways(NamedTuple):
    """How the buckets of one step are exchanged.

    Attributes:
      numbers: int32 [buckets], of the plan's alternatives; integers where they can't change.
      waiting: float32 [buckets], above 0 where residuals may hold what another way has left.
    """

    numbers: Any
    waiting: tf.Variable


class Chosen:
    """The choice of one reducer.

    Where the engine can't exchange in a branch of a graph it is that of the beginning. Elsewhere
    all ranks look at the link after the same number of calls of `step`: a count of their own, since
    those that are saved may differ between ranks.

    Args:
      chooser: what ranks have chosen when they began.
      branches: whether the engine can exchange in a branch of a graph.
    """

    def __init__(self, chooser: Chooser, branches: bool) -> None:
        import tensorflow as tf

        self._chooser, self._branches = chooser, branches

        # On the CPU, where the branch is chosen.
        with tf.device("/CPU:0"):
            self._numbers = slot(chooser.numbers, "ways", tf.int32)
            self._steps = slot(0, "ways_steps", tf.int64)
            self._next = slot(chooser.interval, "ways_next", tf.int64)
        self._waiting = slot(tf.zeros(len(chooser.numbers)), "ways_waiting")

    @property
    def numbers(self) -> tuple[int, ...]:
        """What is chosen now, also while a step is traced."""
        import tensorflow as tf

        if not self._branches:
            return self._chooser.numbers
        with tf.init_scope():
            return tuple(self._numbers.numpy().tolist())

    def send_waiting(self) -> None:
        """Notes that residuals were given from outside."""
        import tensorflow as tf

        with tf.init_scope():
            self._waiting.assign(tf.ones_like(self._waiting))

    def step(self, guard: Callable[[Any], Any]) -> Ways:
        """The ways of a step that begins; all ranks call it once a step.

        Args:
          guard: hands on a tensor, or fails where ranks no more exchange.
        """
        import tensorflow as tf

        if not self._branches:
            return Ways(self._chooser.numbers, self._waiting)
        with tf.device("/CPU:0"):
            steps = guard(tf.reshape(self._steps.assign_add(1), [1]))
            due = steps[0] > self._next.read_value()
            numbers = tf.cond(due, lambda: self._look(steps), self._numbers.read_value)
        return Ways(numbers, self._waiting)

    def _look(self, steps: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        def look(_: Any) -> np.ndarray:
            self._chooser.look()
            return np.array([*self._chooser.numbers, self._chooser.interval], np.int32)

        # Not as an operation that has a state: TensorFlow would let other such operations, and so
        # all exchanges, wait for the whole backward pass.
        told = tf.numpy_function(look, [steps], tf.int32, stateful=False)
        told = tf.ensure_shape(told, [len(self._chooser.numbers) + 1])
        numbers = told[:-1]
        changed = tf.cast(numbers != self._numbers.read_value(), tf.float32)
        self._waiting.assign(tf.maximum(self._waiting.read_value(), changed))
        self._next.assign(steps[0] + tf.cast(told[-1], tf.int64))
        self._numbers.assign(numbers)
        return numbers
