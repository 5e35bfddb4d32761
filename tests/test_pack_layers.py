"""Every kind of layer, packed: gradients, draws and states as without packing."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from packed_layers import FORMULAS, OTHERS, Encoder, built, equal, error, numbers, step

import gradcomp as gc

ALL = {**FORMULAS, **OTHERS}


@pytest.mark.parametrize("recompute", [None, True], ids=["formula", "recomputed"])
@pytest.mark.parametrize("name", ALL)
def test_lossless_packing_changes_nothing(name: str, recompute: bool | None) -> None:
    make, shape = ALL[name]
    x = numbers(shape)
    # A graph takes long to trace: of the second runs, one holds all kinds of layers.
    for graph in (False, True) if recompute is None or name == "encoder" else (False,):
        plain, states = step(built(make, x), x, graph)
        ours, our_states = step(
            gc.pack_activations(built(make, x), gc.Identity(), recompute), x, graph
        )
        assert equal(states, our_states)
        if graph:
            assert error(ours, plain) < 1e-6
        else:
            assert equal(ours, plain)


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("prelu", "max pool 3d")])
def test_lossy_gradients_are_near(name: str) -> None:
    # Few elements, of random signs: each has its own error, of which a sum over many loses most.
    make, shape = ALL[name]
    x = numbers(shape)
    plain, _ = step(built(make, x), x, False, 1)
    for spec, bound in (("fp16", 6e-4), ("bf16", 6e-3), ("quantize:bits=8", 2e-2), ("fp8", 6e-2)):
        ours, _ = step(gc.pack_activations(built(make, x), spec), x, False, 1)
        np.testing.assert_allclose(ours[0], plain[0], rtol=1e-5, atol=1e-6)  # forward is exact
        assert error(ours[1:], plain[1:]) < bound, spec
        draws = ("dropout", "noise", "pool", "relu")
        if any(word in name for word in draws) and not name.startswith(("att", "dense", "alpha")):
            assert equal(ours, plain), "masks, positions and seeds are exact"


def coherent(layer, x, graph=True):
    """Gradients to which all of many rows add up, as those of a real loss do at first."""

    @tf.function
    def run(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(x, training=True)))
        return tape.gradient(loss, [v.value for v in layer.trainable_variables])

    return [g.numpy() for g in run(x)]


@pytest.mark.parametrize("recompute", [None, True], ids=["formula", "recomputed"])
def test_gradient_errors_of_an_encoder(recompute: bool | None) -> None:
    x = numbers((16, 256, 64))

    def make() -> Encoder:
        return Encoder(64, 4)

    plain = coherent(built(make, x), x)
    bounds = {"fp16": 1e-4, "quantize:bits=8": 2e-3, "quantize:bits=4": 4e-2}
    for spec, bound in {**bounds, "fp8": 1e-2, "fp8:format=e5m2": 2e-2}.items():
        ours = coherent(gc.pack_activations(built(make, x), spec, recompute), x)
        measured = error(ours, plain)
        print(f"{spec} recompute={recompute}: {measured:.1e}")
        assert 0 < measured < bound
