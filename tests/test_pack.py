"""`pack` and `unpack` of single tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from packed_layers import numbers

import gradcomp as gc
from gradcomp.activations.pack import Packed, pack, packs, unpack

CODECS = (
    gc.FP16(),
    gc.BF16(),
    gc.FP8(),
    gc.FP8("e5m2"),
    gc.Quantize(8),
    gc.Quantize(4),
    gc.Quantize(8, stochastic=True),
)
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.spec)
SIGNATURES = (None, [tf.TensorSpec([None, 33])], [tf.TensorSpec(None)])


@every_codec
def test_there_and_back_with_the_identity_as_gradient(codec: gc.Codec) -> None:
    x = numbers((7, 33))

    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            kept = pack(x, codec)
            again = unpack(kept, [x])
            y = tf.reduce_sum(again * again)
        return tf.concat(kept.parts, 0), again, tape.gradient(y, x)

    flat = x.numpy().reshape(-1)
    bound = codec.error_bound(flat).reshape(7, 33)
    for signature in SIGNATURES:
        payload, again, dx = tf.function(run, input_signature=signature)(x)
        assert payload.shape == [codec.payload_size(flat.size)]
        assert again.dtype == x.dtype
        assert (np.abs(again - x) <= bound).all() and (again != x).numpy().any()
        np.testing.assert_array_equal(dx, 2 * again)
    payload, again, dx = run(x)
    np.testing.assert_array_equal(dx, 2 * again)
    if not (isinstance(codec, gc.Quantize) and (codec.stochastic or codec.bits < 8)):
        nearest = gc.Quantize(8, stochastic=False) if isinstance(codec, gc.Quantize) else codec
        np.testing.assert_array_equal(payload, nearest.encode(x.numpy()))


def test_fewer_bits_are_rounded_at_random_and_without_bias() -> None:
    x = tf.fill([40000], 0.3)  # between two codes of a block whose largest is 1
    x = tf.tensor_scatter_nd_update(x, [[i] for i in range(0, 40000, 256)], [1.0] * 157)
    again = unpack(pack(x, gc.Quantize(4)))
    assert len(np.unique(again)) == 3
    assert abs(float(tf.reduce_mean(again) - tf.reduce_mean(x))) < 2e-3
    assert len(np.unique(unpack(pack(x, gc.Quantize(8))))) == 2


def test_what_is_small_already_stays() -> None:
    half = tf.cast(numbers((5, 4)), tf.float16)
    for codec, dtype, smaller in (
        (gc.FP16(), tf.float32, True),
        (gc.FP16(), tf.float16, False),
        (gc.FP16(), tf.bfloat16, False),
        (gc.FP8(), tf.float16, True),
        (gc.Quantize(8), tf.bfloat16, True),
        (gc.Identity(), tf.float32, False),
        (gc.Quantize(4), tf.int32, False),
        (gc.Quantize(4), tf.bool, False),
        (gc.Quantize(4), tf.resource, False),
        (gc.Quantize(4), tf.complex64, False),
    ):
        assert packs(codec, dtype) == smaller
    assert pack(half, gc.FP16()).parts[0] is half
    assert unpack(pack(half, gc.FP8())).dtype == tf.float16
    whole = tf.constant([1, 2])
    assert unpack(pack(whole, gc.Quantize(4))) is whole


def test_non_finite_values_stay_non_finite() -> None:
    x = tf.constant([1.0, np.inf, -np.inf, np.nan, 1e6, -1e6])

    def run(x: Any) -> Packed:
        return unpack(pack(x, gc.FP16()))

    want = np.array([1.0, np.inf, -np.inf, np.nan, 65504, -65504], np.float32)
    np.testing.assert_array_equal(run(x), want)
    np.testing.assert_array_equal(tf.function(run, jit_compile=True)(x), want)
    for codec in (gc.Quantize(8), gc.FP8()):
        assert np.isnan(unpack(pack(x, codec))).all()


def test_errors() -> None:
    with pytest.raises(gc.CodecError, match=r"float64 can't be packed by fp16: compute in float32"):
        pack(tf.zeros(3, tf.float64), gc.FP16())
    with pytest.raises(gc.CodecError, match=r"quantize:bits=8 can't pack in a function that XLA"):
        tf.function(lambda x: pack(x, gc.Quantize(8)).parts, jit_compile=True)(tf.zeros(3))
