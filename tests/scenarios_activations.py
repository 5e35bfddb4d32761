"""Packed activations and compressed gradients in the same step, under a strategy or on ranks."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
from packed_layers import Encoder, error

import gradcomp as gc

L = keras.layers


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((48, 6, 8)).astype(np.float32)
    return x, x[:, 0, :4].argmax(1)


def trained(opt: Any, pack: Any) -> list[np.ndarray]:
    """Weights of a model with a packed block, statistics and draws, after two epochs."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6, 8)),
            pack(Encoder(rate=0.2)),
            pack(L.BatchNormalization()),
            L.GlobalAveragePooling1D(),
            pack(L.Dense(4)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(opt, loss, jit_compile=False)
    x, y = data()
    model.fit(x, y, 24, 1, verbose=0, shuffle=False)
    return model.get_weights()


def check(make: Any) -> dict[str, float]:
    """Packing beside compression: the distance from the same training without packing."""
    plain = trained(make(), lambda layer: layer)
    told = {}
    for spec, recompute, bound in (
        ("identity", None, 1e-5),
        ("identity", True, 1e-5),
        ("quantize:bits=8", None, 2e-2),
    ):
        pack = functools.partial(gc.pack_activations, codec=spec, recompute=recompute)
        ours = trained(make(), pack)
        told[f"{spec} {recompute}"] = error(ours, plain)
        assert told[f"{spec} {recompute}"] < bound, told
    return told


def with_compressed_gradients(strategy: Any) -> dict[str, float]:
    """Under MirroredStrategy."""
    with strategy.scope():
        # Top-k would make a last bit into another choice.
        return check(lambda: gc.DistributedOptimizer(keras.optimizers.SGD(0.05), "fp16"))


def on_ranks() -> dict[str, float]:
    """On Horovod's ranks."""
    import gradcomp.horovod as hvd

    return check(
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=gc.FP16())
    )


SCENARIOS = {"with_compressed_gradients": with_compressed_gradients}
