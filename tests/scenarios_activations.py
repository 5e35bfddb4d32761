"""Packed activations and compressed gradients in the same step, under a strategy or on ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from packed_layers import Encoder, error
from stash import Stash

import gradcomp as gc

L = keras.layers
Way = Callable[[keras.Model], object]


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((48, 6, 8)).astype(np.float32)
    return x, x[:, 0, :4].argmax(1)


def network(pack: Any = lambda layer: layer) -> keras.Model:
    """A model with a block, statistics and draws, of which `pack` packs layers."""
    keras.utils.set_random_seed(3)
    layers = [pack(Encoder(rate=0.2)), pack(L.BatchNormalization())]
    return keras.Sequential(
        [keras.Input((6, 8)), *layers, L.GlobalAveragePooling1D(), pack(L.Dense(4))]
    )


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def trained(opt: Any, model: keras.Model) -> list[np.ndarray]:
    """Weights after an epoch."""
    model.compile(opt, loss(), jit_compile=False)
    x, y = data()
    model.fit(x, y, 24, 1, verbose=0, shuffle=False)
    report = getattr(model.call, "report", None)
    assert report is None or report().packed
    return model.get_weights()


def each_way() -> dict[str, tuple[Callable[[], keras.Model], float]]:
    """Packed models, and how far from plain training weights may end."""

    def layers(codec: str, recompute: bool | None) -> keras.Model:
        return network(lambda layer: gc.pack_activations(layer, codec, recompute))

    eight = "quantize:bits=8"
    rules = [(L.Dense, None), (".", eight)]
    return {
        "layers, lossless": (lambda: layers("identity", True), 1e-5),
        "layers, 8 bits": (lambda: layers(eight, None), 2e-2),
        "auto_pack, lossless": (lambda: gc.auto_pack(network(), Stash()), 1e-5),
        "pack_model, 8 bits": (lambda: gc.pack_model(network(), rules).model, 2e-2),
    }


def check(make: Any) -> dict[str, float]:
    """Packing beside compression: the distance from the same training without packing."""
    plain = trained(make(), network())
    told = {}
    for name, (packed, bound) in each_way().items():
        told[name] = error(trained(make(), packed()), plain)
        assert told[name] < bound, told
    return told


def trained_in_xla(
    run: Callable[[Any, Any, Any], Any], opt: Any, way: Way | None
) -> list[np.ndarray]:
    """Weights after steps of which XLA compiles the forward and the backward pass."""
    keras.utils.set_random_seed(3)
    layers = [L.Dense(32, "gelu"), L.LayerNormalization(), L.GlobalAveragePooling1D(), L.Dense(4)]
    model = keras.Sequential([keras.Input((6, 8)), *layers])
    if way is not None:
        way(model)
    opt.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss()(y, model(x, training=True))
        return tape.gradient(value, [v.value for v in model.trainable_variables])

    def step(x: Any, y: Any) -> None:
        opt.apply(gradients(x, y), model.trainable_variables)

    x, y = data()
    for _ in range(2):
        run(step, tf.constant(x), tf.constant(y))
    return model.get_weights()


def check_xla(run: Callable[[Any, Any, Any], Any], make: Any) -> dict[str, float]:
    """As `check`, where XLA compiles what packs."""
    plain = trained_in_xla(run, make(), None)
    told = {}
    ways: dict[str, Way] = {
        "pack_model": lambda model: gc.pack_model(model, [(".", "fp16")]),
        "auto_pack": lambda model: gc.auto_pack(model, "fp16"),
    }
    for name, way in ways.items():
        told[name] = error(trained_in_xla(run, make(), way), plain)
        assert 0 < told[name] < 1e-3, told
    return told


def with_compressed_gradients(strategy: Any) -> dict[str, float]:
    """Under MirroredStrategy."""
    with strategy.scope():
        # Top-k would make a last bit into another choice.
        return check(lambda: gc.DistributedOptimizer(keras.optimizers.SGD(0.05), "fp16"))


def planned(strategy: Any) -> None:
    """What a model keeps does not depend on how many devices have its variables."""

    def plan() -> Any:
        return gc.pack_model(network(), gc.Policy(gc.FP16(), min_numel=32)).plan(64)

    with strategy.scope():
        mirrored = plan()
    plain = plan()
    assert (mirrored.before, mirrored.after) == (plain.before, plain.after)
    assert plain.after < 0.6 * plain.before


def in_xla(strategy: Any) -> dict[str, float]:
    """Under MirroredStrategy, each replica with the same batch."""

    @tf.function
    def run(step: Any, x: Any, y: Any) -> None:
        strategy.run(step, (x, y))

    with strategy.scope():
        return check_xla(run, lambda: gc.DistributedOptimizer(keras.optimizers.SGD(0.05), "fp16"))


def _on_ranks() -> Any:
    import gradcomp.horovod as hvd

    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=gc.FP16())


def on_ranks() -> dict[str, float]:
    """On Horovod's ranks."""
    return check(_on_ranks)


def in_xla_on_ranks() -> dict[str, float]:
    """On Horovod's ranks."""

    @tf.function
    def run(step: Any, x: Any, y: Any) -> None:
        step(x, y)

    return check_xla(run, _on_ranks)


SCENARIOS = {
    "with_compressed_gradients": with_compressed_gradients,
    "planned": planned,
    "in_xla": in_xla,
}
