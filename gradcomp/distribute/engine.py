"""Which engine a program runs in, in words, said once."""

from __future__ import annotations

import functools

import tensorflow as tf

from gradcomp.say import say

# What users write: TensorFlow's own classes have other names.
_NAMES = (
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
)


def name_of(strategy: tf.distribute.Strategy) -> str:
    """What users know a strategy by."""
    public = (name for name in _NAMES if isinstance(strategy, getattr(tf.distribute, name)))
    return next(public, type(strategy).__name__)


def engine_of(strategy: tf.distribute.Strategy) -> str:
    """`MirroredStrategy with 2 replicas`."""
    size = strategy.num_replicas_in_sync
    text = f"{name_of(strategy)} with {size} replica{'' if size == 1 else 's'}"
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        workers = size // len(strategy.extended.worker_devices)
        text += f" on {workers} worker{'' if workers == 1 else 's'}"
    return text


@functools.cache
def say_once(engine: str, alone: bool) -> None:
    """Logs where gradients go, at the level INFO of the logger `gradcomp`.

    Args:
      engine: what was found.
      alone: whether there is nobody to exchange anything with.
    """
    told = "there is nobody to exchange gradients with" if alone else "gradients are exchanged"
    say(f"the engine is {engine}: {told}")
