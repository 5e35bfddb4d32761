"""One training script, run with Horovod's own Keras optimizer and with gradcomp's."""

from __future__ import annotations

from types import ModuleType

import horovod.tensorflow.keras
import numpy as np
from scenarios_training import data, loss, model

import gradcomp.horovod


def script(hvd: ModuleType) -> list[np.ndarray]:
    """What a user writes; all ranks start from the same seed, so that no broadcast is needed."""
    import keras

    net = model(seed=1)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    net.compile(optimizer, loss())
    x, y = data(hvd.rank())
    net.fit(x, y, batch_size=24, epochs=5, verbose=0, shuffle=False)
    return net.get_weights()


def furthest_apart(weights: list[np.ndarray]) -> float:
    """The largest difference of one weight between two ranks."""
    ranks = gradcomp.horovod.allgather_object(weights)
    pairs = [(a, b) for other in ranks[1:] for a, b in zip(ranks[0], other, strict=True)]
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def same_script_twice() -> dict[str, float]:
    return {
        "horovod.tensorflow.keras": furthest_apart(script(horovod.tensorflow.keras)),
        "gradcomp.horovod": furthest_apart(script(gradcomp.horovod)),
    }


SCENARIOS = {"same_script_twice": same_script_twice}
