"""A layer that runs out of memory, for processes that load it by its registered name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="gradcomp_tests")
class Exhausts(keras.layers.Layer):
    """Asks for more memory than any machine has where a batch has more than `most` rows."""

    def __init__(self, most: int, **options: object) -> None:
        super().__init__(**options)
        self.most = most

    def call(self, x: tf.Tensor) -> tf.Tensor:
        print("fits", flush=True)  # what a model prints is no answer
        rows = tf.shape(x)[0]
        wanted = tf.where(rows > self.most, tf.constant(2**50, tf.int64), tf.constant(1, tf.int64))
        return x + tf.random.uniform([wanted])[0]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Exhausts:
        # The kernel ends the process that tries sizes, before the one that called.
        assert Path("/proc/self/oom_score_adj").read_text().strip() == "1000"
        return cls(**config)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "most": self.most}
