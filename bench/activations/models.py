"""What is trained: models as lists of blocks, which methods with recomputation run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

L = keras.layers


@dataclass(frozen=True)
class Model:
    """A model and the batch that it is trained on.

    Attributes:
      shape: of an example.
      batch: examples.
      blocks: makes the blocks, each a Keras model of the one before's output.
    """

    shape: tuple[int, ...]
    batch: int
    blocks: Callable[[], list[Any]]


def transformer(
    layers: int = 10, width: int = 512, heads: int = 8, length: int = 256, batch: int = 16
) -> Model:
    """A Transformer encoder, its norms before its sublayers, with dropout of 0.1."""

    def block() -> Any:
        inputs = keras.Input((length, width))
        x = L.LayerNormalization()(inputs)
        x = L.MultiHeadAttention(heads, width // heads, dropout=0.1)(x, x)
        middle = L.Add()([inputs, L.Dropout(0.1)(x)])
        x = L.Dense(4 * width, activation="gelu")(L.LayerNormalization()(middle))
        x = L.Dropout(0.1)(L.Dense(width)(x))
        return keras.Model(inputs, L.Add()([middle, x]))

    return Model((length, width), batch, lambda: [block() for _ in range(layers)])


def resnet(
    stages: tuple[int, ...] = (3, 4, 6, 3), size: int = 64, width: int = 64, batch: int = 64
) -> Model:
    """A convolutional network of ResNet-50's shape: bottlenecks of a quarter of the channels."""

    def convolution(x: Any, filters: int, kernel: int, stride: int = 1, relu: bool = True) -> Any:
        x = L.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(x)
        x = L.BatchNormalization()(x)
        return L.Activation("relu")(x) if relu else x

    def stem() -> Any:
        inputs = keras.Input((size, size, 3))
        x = convolution(inputs, width, 7, 2)
        return keras.Model(inputs, L.MaxPooling2D(3, 2, padding="same")(x))

    def bottleneck(shape: tuple[int, ...], filters: int, stride: int) -> Any:
        inputs = shortcut = keras.Input(shape)
        if stride > 1 or shape[-1] != 4 * filters:
            shortcut = convolution(inputs, 4 * filters, 1, stride, relu=False)
        x = convolution(inputs, filters, 1, stride)
        x = convolution(convolution(x, filters, 3), 4 * filters, 1, relu=False)
        return keras.Model(inputs, L.Activation("relu")(L.Add()([shortcut, x])))

    def blocks() -> list[Any]:
        made = [stem()]
        for stage, count in enumerate(stages):
            for i in range(count):
                stride = 2 if stage and not i else 1
                made.append(bottleneck(made[-1].output_shape[1:], width * 2**stage, stride))
        inputs = keras.Input(made[-1].output_shape[1:])
        made.append(keras.Model(inputs, L.Dense(1000)(L.GlobalAveragePooling2D()(inputs))))
        return made

    return Model((size, size, 3), batch, blocks)


def mlp(layers: int = 16, width: int = 512, batch: int = 8192) -> Model:
    """Thin layers, of which each is a block: gelu(x·W + b)."""

    def block() -> Any:
        inputs = keras.Input((width,))
        return keras.Model(inputs, L.Dense(width, activation="gelu")(inputs))

    return Model((width,), batch, lambda: [block() for _ in range(layers)])


FULL = {"transformer": transformer(), "resnet50": resnet(), "mlp": mlp()}
QUICK = {
    "transformer": transformer(layers=2, width=64, heads=4, length=32, batch=16),
    "resnet50": resnet(stages=(1, 1), size=32, width=16, batch=8),
    "mlp": mlp(layers=4, width=256, batch=2048),
}
