"""The models that are trained, their data, and the accuracy that counts as reached."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers
from numpy.typing import NDArray

from bench.demo.data import SOURCES, find_source

_TEXT_BYTES = 2_000_000
_LENGTH = 64  # characters of an example
_CHARACTERS = 128  # ASCII
_WIDTH = 128


@dataclass(frozen=True)
class Data:
    """Arrays with one example a row; labels are int32, one an example or one a character."""

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[np.int32]
    x_test: NDArray[Any]
    y_test: NDArray[np.int32]


@dataclass(frozen=True)
class Task:
    """A model and how it is trained.

    Attributes:
      batch: examples of a rank in a step.
      rate: the largest of the learning rates.
      optimizer: made from the learning rates.
      target: test accuracy, in percent, that counts as reached.
      steps, quick_steps: how long it is trained, in full and in small size.
    """

    make: Callable[[], keras.Model]
    data: Callable[[], Data]
    batch: int
    rate: float
    optimizer: Callable[[Any], keras.optimizers.Optimizer]
    target: float
    steps: int
    quick_steps: int


def dense() -> keras.Model:
    """10.3 million parameters in dense layers: much to send for little to compute."""
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Flatten(),
            layers.Dense(3072, activation="relu"),
            layers.Dense(2560, activation="relu"),
            layers.Dense(10),
        ]
    )


def conv() -> keras.Model:
    """0.2 million parameters in convolutions: much to compute for little to send."""
    net = keras.Sequential([layers.Input((28, 28, 1))])
    for filters in (32, 64, 128):
        net.add(_convolution(filters, 3))
        net.add(_convolution(filters // 2, 1))
        net.add(_convolution(filters, 3))
        net.add(layers.MaxPooling2D())
    net.add(layers.GlobalAveragePooling2D())
    net.add(layers.Dense(10))
    return net


def _convolution(filters: int, size: int) -> keras.Layer:
    # Plain SGD makes no progress where activations shrink from layer to layer.
    return layers.Conv2D(
        filters, size, padding="same", activation="relu", kernel_initializer="he_normal"
    )


def transformer() -> keras.Model:
    """A character model: two blocks of causal attention, 0.43 million parameters."""
    characters = layers.Input((_LENGTH,), dtype="int32")
    places = layers.Embedding(_LENGTH, _WIDTH)(keras.ops.arange(_LENGTH))
    x = layers.Dense(_WIDTH)(keras.ops.one_hot(characters, _CHARACTERS)) + places
    for _ in range(2):
        seen = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, _WIDTH // 4)(seen, seen, use_causal_mask=True)
        inner = layers.Dense(4 * _WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(_WIDTH)(inner)
    return keras.Model(characters, layers.Dense(_CHARACTERS)(layers.LayerNormalization()(x)))


@cache
def images() -> Data:
    """Fashion-MNIST, or scikit-learn's digits where it can't be had."""
    found = SOURCES[find_source()]()
    return Data(found.name, found.x_train, found.y_train, found.x_test, found.y_test)


@cache
def library_text() -> Data:
    """Python's own standard library, a character's label being the one that follows."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    content = b"".join(file.read_bytes() for file in files)[:_TEXT_BYTES]
    codes = np.frombuffer(content, np.uint8) % _CHARACTERS
    rows = len(codes) // (_LENGTH + 1)
    rows_of = codes[: rows * (_LENGTH + 1)].reshape(rows, _LENGTH + 1).astype(np.int32)
    # Whole files are held back, as far as rows go.
    split = rows * 9 // 10
    x, y = rows_of[:, :-1], rows_of[:, 1:]
    return Data("Python's standard library", x[:split], y[:split], x[split:], y[split:])


TASKS = {
    "dense": Task(dense, images, 16, 0.2, keras.optimizers.SGD, 83.0, 400, 30),
    "conv": Task(conv, images, 64, 2e-3, keras.optimizers.Adam, 75.0, 160, 12),
    "transformer": Task(transformer, library_text, 16, 0.25, keras.optimizers.SGD, 34.0, 400, 12),
}
