"""Layers to pack, each with a shape of input, and what they are compared by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

L = keras.layers
IMAGE = (2, 9, 10, 6)
ROWS = (4, 7)
STEPS = (2, 6, 8)


class Attends(L.Layer):
    """Attention of a tensor to itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.causal = options.pop("causal", False)
        self.attention = L.MultiHeadAttention(2, 4, seed=3, **options)

    def call(self, x: Any, training: Any = None) -> Any:
        return self.attention(x, x, training=training, use_causal_mask=self.causal)


@keras.saving.register_keras_serializable("gradcomp_tests")
class Encoder(L.Layer):
    """A block of a Transformer."""

    def __init__(self, width: int = 8, heads: int = 2, rate: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.width, self.heads, self.rate = width, heads, rate
        self.norms = [L.LayerNormalization(), L.LayerNormalization()]
        self.attention = L.MultiHeadAttention(heads, width // heads, dropout=rate, seed=1)
        self.drops = [L.Dropout(rate, seed=2), L.Dropout(rate, seed=3)]
        self.wide, self.narrow = L.Dense(4 * width, activation="gelu"), L.Dense(width)
        self.supports_masking = True

    def build(self, shape: Any) -> None:
        for layer in (*self.norms, self.wide):
            layer.build(shape)
        self.attention.build(shape, shape)
        self.narrow.build((*shape[:-1], 4 * self.width))

    def call(self, x: Any, training: Any = None) -> Any:
        h = self.norms[0](x)
        x = x + self.drops[0](self.attention(h, h))
        return x + self.drops[1](self.narrow(self.wide(self.norms[1](x))))

    def get_config(self) -> dict[str, Any]:
        sizes = {"width": self.width, "heads": self.heads, "rate": self.rate}
        return {**super().get_config(), **sizes}


def dense(activation: Any) -> Callable[[], Any]:
    return lambda: L.Dense(5, activation=activation)


# Those with a formula, by name: how to make one, and the shape of its input.
FORMULAS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    **{f"dense {name}": (dense(name), ROWS) for name in (None, "relu", "relu6", "leaky_relu")},
    **{f"dense {name}": (dense(name), ROWS) for name in ("gelu", "silu", "softmax", "tanh")},
    "dense sigmoid": (dense("sigmoid"), (4, 3, 7)),
    "conv2d": (lambda: L.Conv2D(4, 3, strides=2, padding="same", activation="relu"), IMAGE),
    "conv1d": (lambda: L.Conv1D(4, 3, padding="causal", dilation_rate=2), STEPS),
    "norm": (L.LayerNormalization, STEPS),
    "norm of two axes": (lambda: L.LayerNormalization(axis=(1, 2), scale=False), STEPS),
    "attention": (Attends, STEPS),
    "attention, dropout": (lambda: Attends(dropout=0.3), STEPS),
    "attention, causal": (lambda: Attends(dropout=0.3, causal=True), STEPS),
    "encoder": (Encoder, STEPS),
    "dropout": (lambda: L.Dropout(0.4, seed=3), IMAGE),
    "spatial dropout": (lambda: L.SpatialDropout2D(0.4, seed=3), IMAGE),
    "gaussian dropout": (lambda: L.GaussianDropout(0.4, seed=3), ROWS),
    "noise": (lambda: L.GaussianNoise(0.4, seed=3), ROWS),
    "relu with three slopes": (lambda: L.ReLU(2.0, 0.1, 0.2), IMAGE),
    "leaky relu": (L.LeakyReLU, IMAGE),
    "activation": (lambda: L.Activation("swish"), ROWS),
    "max pool": (lambda: L.MaxPooling2D(2), IMAGE),
    "max pool, overlapping": (lambda: L.MaxPooling2D(3, strides=2, padding="same"), IMAGE),
    "max pool 1d": (lambda: L.MaxPooling1D(3, strides=1), STEPS),
    "average pool": (lambda: L.AveragePooling2D(3, 2, padding="same"), IMAGE),
}
# Those that are run again.
OTHERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "batch norm": (L.BatchNormalization, IMAGE),
    "lstm": (lambda: L.LSTM(5, return_sequences=True, dropout=0.2, seed=3), STEPS),
    "bidirectional": (lambda: L.Bidirectional(L.GRU(5)), STEPS),
    "time distributed": (lambda: L.TimeDistributed(L.Dense(3)), STEPS),
    "alpha dropout": (lambda: L.AlphaDropout(0.4, seed=3), ROWS),
    "separable": (lambda: L.SeparableConv2D(4, 3), IMAGE),
    "max pool 3d": (lambda: L.MaxPooling3D(2), (2, 4, 4, 4, 3)),
    "softmax layer": (L.Softmax, ROWS),
    "prelu": (L.PReLU, ROWS),
}


def numbers(shape: tuple[int, ...], seed: int = 1) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def step(layer: Any, x: Any, graph: bool, steps: int = 2) -> tuple[list[Any], list[Any]]:
    """What a layer returns, with all gradients, the last of some times; and its states then."""

    def once(x: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(tf.sin(y) * 1.3)
        weights = [v.value for v in layer.trainable_variables]
        return [y, *tape.gradient(loss, [x, *weights])]

    run = tf.function(once) if graph else once
    made = [run(x) for _ in range(steps)][-1]
    return [t.numpy() for t in made], [v.numpy() for v in layer.non_trainable_variables]


def built(make: Callable[[], Any], x: Any) -> Any:
    """A new layer, with the same weights each time."""
    keras.utils.set_random_seed(5)
    layer = make()
    layer(x)
    return layer


def error(some: list[Any], others: list[Any]) -> float:
    """The distance of all together, relative to the norm of the second."""
    pairs = list(zip(some, others, strict=True))
    squares = [(np.square(a - b).sum(dtype=float), np.square(b).sum(dtype=float)) for a, b in pairs]
    return float(np.sqrt(sum(s for s, _ in squares) / sum(s for _, s in squares)))


def equal(some: list[Any], others: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))
