"""`hvd.load_model`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from gradcomp.horovod.optimizer import DistributedOptimizer
from gradcomp.loss_scale import LossScaleOptimizer
from gradcomp.optimizer import DistributedOptimizer as Distributed


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = None,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model, saved by whatever script, to train it on over Horovod.

    Args:
      filepath: as in `keras.models.load_model`.
      custom_optimizers: classes of optimizers that aren't Keras's.
      custom_objects: as in Keras.
      compression: as in `DistributedOptimizer`; a model that was saved with a distributed optimizer
        keeps its own.
      legacy_opts: False; the optimizers of Keras 2 don't exist in Keras 3.

    Returns:
      The model; its optimizer is distributed and has the state that was saved.
    """
    if legacy_opts:
        raise ValueError("legacy_opts=True: Keras 3 has no legacy optimizers; leave it False")
    classes = {c.__name__: c for c in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**classes, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not isinstance(optimizer, Distributed | LossScaleOptimizer):
        # The object stays the same one, so what was compiled holds.
        DistributedOptimizer(optimizer, compression=compression)
    return model
