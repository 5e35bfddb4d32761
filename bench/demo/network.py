"""The demo's network, its learning rate and its batches."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

_LEARNING_RATE = 0.025 / 32  # for each image of a step


def convolutional_network(shape: tuple[int, ...]) -> keras.Model:
    """Over 95 % of its parameters are in tensors large enough to be compressed."""
    return keras.Sequential(
        [
            layers.Input(shape),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(96, activation="relu"),
            layers.Dense(10),
        ]
    )


def learning_rate(steps: int, batch_size: int) -> Any:
    """A schedule over `steps`, for `batch_size` images a step, all processes together.

    The rate rises over a fifth of the steps: top-k's corrections come late and large, and would do
    lasting harm at full rate while the weights are still random.
    """
    warm_up = steps // 5
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=steps - warm_up,
        warmup_target=_LEARNING_RATE * batch_size,
        warmup_steps=warm_up,
    )


def batches(x: np.ndarray, y: np.ndarray, batch_size: int, seed: int) -> tf.data.Dataset:
    """Shuffled anew each epoch, in an order that depends on nothing but the seed."""
    images, labels = tf.constant(x), tf.constant(y)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    order = tf.data.Dataset.range(len(x)).shuffle(len(x), seed=seed)
    indices = order.batch(batch_size, drop_remainder=True)
    return indices.map(lambda i: (tf.gather(images, i), tf.gather(labels, i))).with_options(options)
