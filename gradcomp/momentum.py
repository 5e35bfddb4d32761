"""Momentum correction: top-k with feedback as if nothing had been delayed.

With u the velocity, v what was not sent yet (the residual) and g a rank's own gradient,

    u ← m·u + g,   v ← v + u,   send from v,   zero u and v where sent.

So a value that waits gathers the momentum that it would have had. The learning rate is in neither:
it multiplies what arrives, when it arrives.

Where everything is sent (dense variables, codecs that don't select) nothing is delayed, and u is
kept. The mean of the ranks' velocities then is the velocity of their mean, as in plain SGD.

Source: Deep Gradient Compression, arXiv:1712.01887, sections 3.1 and 3.2, algorithm 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcomp.bucket import VariableSpec
from gradcomp.codecs import Codec
from gradcomp.slots import slot

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class Momentum:
    """What an SGD optimizer hands over.

    Attributes:
      momentum: m, above 0 and at most 1.
      nesterov: send from v ← v + m·u + g instead.
      clipnorm, global_clipnorm: the norm that each variable's, or all variables', reduced gradient
        is to have at most.
    """

    momentum: float
    nesterov: bool = False
    clipnorm: float | None = None
    global_clipnorm: float | None = None

    def clip(self, gradients: Sequence[Any], size: int, average: bool) -> list[Any]:
        """Clips a rank's own gradients, since what is accumulated can't be clipped any more.

        The reduced gradient sums N contributions, g/N under Average, whose noise adds up to √N
        times that of one. So a contribution may have N^−½ of the norm (section 3.2).

        Args:
          gradients: a tensor or None for each variable.
        """
        import tensorflow as tf

        share = size**-0.5 * (size if average else 1)
        if self.clipnorm:
            norm = self.clipnorm * share
            return [None if g is None else tf.clip_by_norm(g, norm) for g in gradients]
        if self.global_clipnorm:
            return tf.clip_by_global_norm(list(gradients), self.global_clipnorm * share)[0]
        return list(gradients)

    def accumulate(
        self, gradients: Sequence[Any], velocities: Mapping[int, tf.Tensor]
    ) -> tuple[list[Any], dict[int, tf.Tensor]]:
        """(what to add to v, new velocities) of a step, in the velocities' dtypes.

        Args:
          gradients: a tensor or None for each variable; where it is None nothing is accumulated.
          velocities: by the variable's index, of its shape.
        """
        import tensorflow as tf

        steps = list(gradients)
        new: dict[int, tf.Tensor] = {}
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                gradient = tf.cast(gradient, velocities[index].dtype)
                new[index] = self.momentum * velocities[index] + gradient
                steps[index] = (
                    self.momentum * new[index] + gradient if self.nesterov else new[index]
                )
        return steps, new


class Velocities:
    """A reducer's velocities, float32, or float64 where the variable is.

    Attributes:
      kept: by the variable's index; empty where there is no momentum correction.
    """

    def __init__(
        self, momentum: Momentum | None, variables: Sequence[VariableSpec], size: int, average: bool
    ) -> None:
        import tensorflow as tf

        self._momentum = momentum
        self._variables = variables
        self._size = size
        self._average = average
        self.kept: dict[int, tf.Variable] = {}
        if momentum is not None:
            for v in variables:
                dtype = tf.float64 if v.dtype == "float64" else tf.float32
                zeros = tf.zeros(v.shape, dtype)
                self.kept[v.index] = slot(zeros, f"velocity_{v.index}")

    def accumulate(self, gradients: Sequence[Any]) -> tuple[list[Any], dict[int, tf.Tensor]]:
        """`Momentum.accumulate` of clipped gradients; the gradients themselves where there is none.

        Raises:
          ValueError: a gradient is sparse.
        """
        if self._momentum is None:
            return list(gradients), {}
        self.refuse_sparse([hasattr(gradient, "indices") for gradient in gradients])
        clipped = self._momentum.clip(gradients, self._size, self._average)
        old = {index: velocity.read_value() for index, velocity in self.kept.items()}
        return self._momentum.accumulate(clipped, old)

    def refuse_sparse(self, sparse: Sequence[bool]) -> None:
        """Raises for the first variable whose gradient is `tf.IndexedSlices`."""
        if self._momentum is not None and any(sparse):
            raise ValueError(
                'error_feedback="momentum" can\'t accumulate the gradient of '
                f"{self._variables[list(sparse).index(True)].path}, which is tf.IndexedSlices: use "
                "error_feedback=True, or make the gradient dense with tf.convert_to_tensor before "
                "it is applied"
            )


def selects(codec: Codec | None) -> bool:
    """Whether a codec sends some elements only."""
    return codec is not None and codec.kept(1) > 0


def zero_where_sent(velocity: tf.Tensor, corrected: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
    """The velocity after a codec that selects: what it leaves is in the residual bit for bit."""
    import tensorflow as tf

    return tf.where(tf.equal(residual, corrected), velocity, tf.zeros_like(velocity))


def take_from(optimizer: Any) -> tuple[Momentum, list[Any] | None]:
    """Takes the momentum from a Keras SGD, whose own is 0 from then on.

    Returns:
      (the momentum, the velocities of an optimizer that is built: for each variable an array, or
      None where it has none).

    Raises:
      ValueError: not an SGD, or without momentum, or one that clips by value.
    """
    import keras
    import numpy as np

    given = type(optimizer).__name__
    if not isinstance(optimizer, keras.optimizers.SGD):
        raise ValueError(
            f'error_feedback="momentum" is momentum correction of SGD, got {given}: pass '
            "keras.optimizers.SGD(…, momentum=0.9), or leave error_feedback=True, which works with "
            "every optimizer"
        )
    if not optimizer.momentum:
        raise ValueError(
            f'error_feedback="momentum" takes the momentum from the optimizer, and that of this '
            f"{given} is {optimizer.momentum}: pass keras.optimizers.SGD(…, momentum=0.9), or "
            "leave error_feedback=True"
        )
    if optimizer.clipvalue:
        raise ValueError(
            f'error_feedback="momentum" clips norms, before gradients are accumulated, and '
            f"clipvalue={optimizer.clipvalue} is none: use clipnorm or global_clipnorm"
        )
    taken = Momentum(
        optimizer.momentum, optimizer.nesterov, optimizer.clipnorm, optimizer.global_clipnorm
    )
    optimizer.momentum = 0.0
    if not optimizer.built:
        return taken, None
    # Keras's velocity has the learning rate and the sign of a step in it.
    rate = float(keras.ops.convert_to_tensor(optimizer.learning_rate).numpy())
    velocities: list[Any] = []
    for kept in optimizer.momentums:
        if kept is None:
            velocities.append(None)
            continue
        values = keras.ops.cast(kept, "float32").numpy()
        velocities.append(-values / rate if rate else np.zeros_like(values))
        optimizer._untrack_variable(kept)
    optimizer.momentums = []
    return taken, velocities
