"""Encoding and decoding single arrays and tensors: what is taken, what is refused, what is kept."""

from __future__ import annotations

from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gradcomp as gc
from gradcomp import reference
from gradcomp.codecs import ArrayCodec, KernelCodec

CODECS = [
    gc.Identity(),
    gc.FP16(),
    gc.BF16(),
    gc.Quantize(8, 64),
    gc.Quantize(4, 32, True),
    gc.Quantize(2, 32, False),
    gc.TopK(0.1),
    gc.TopK(0.3, gc.Quantize(4, 32)),
    gc.FP8("e4m3", 32),
    gc.FP8("e5m2"),
    gc.Sign(64),
    gc.TopK(0.3, gc.FP8()),
    gc.TopK(0.3, gc.Sign(32)),
]
X = np.random.default_rng(0).standard_normal((12, 25)).astype(np.float32)

each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.spec)


def by_reference(codec: KernelCodec, x: np.ndarray, seed: int, step: int) -> np.ndarray:
    segments = np.array([[0, 0, x.size, codec.kept(x.size), 0]], np.int64)
    params = codec.kernel_params(feedback=False)
    return reference.encode(params, [x], None, segments, (seed, step, 0, 0))[0]


def float_arrays() -> st.SearchStrategy[np.ndarray]:
    words = hnp.arrays(np.uint32, st.integers(0, 300), elements=st.integers(0, 2**32 - 1))
    halves = hnp.arrays(np.uint16, st.integers(0, 300), elements=st.integers(0, 2**16 - 1))
    return (
        words.map(lambda w: w.view(np.float32))
        | halves.map(lambda h: h.view(np.float16))
        | halves.map(lambda h: h.view(ml_dtypes.bfloat16))
    )


words64 = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(codec=st.sampled_from(CODECS), x=float_arrays(), seed=words64, step=words64)
def test_bytes_are_those_of_the_reference(
    codec: KernelCodec, x: np.ndarray, seed: int, step: int
) -> None:
    payload = codec.encode(x, seed=seed, step=step)
    np.testing.assert_array_equal(payload, by_reference(codec, x, seed, step))
    assert payload.size == codec.payload_size(x.size)


@settings(deadline=None)
@given(codec=st.sampled_from(CODECS), data=st.data())
def test_any_bytes_decode_or_raise_codec_error(codec: KernelCodec, data: st.DataObject) -> None:
    numel = data.draw(st.integers(0, 150))
    size = codec.payload_size(numel) + data.draw(st.sampled_from([0, 0, 0, -1, 1, 7]))
    payload = data.draw(hnp.arrays(np.uint8, max(0, size)))
    segments = np.array([[0, 0, numel, codec.kept(numel), 0]], np.int64)
    arguments = (payload, 1, segments, 1.0, [(numel,)], ["float32"])
    try:
        decoded = codec.decode(payload, numel)
    except gc.CodecError:
        with pytest.raises(ValueError):
            reference.decode(codec.kernel_params(False), *arguments)
        return
    (expected,), _ = reference.decode(codec.kernel_params(False), *arguments)
    assert decoded.tobytes() == expected.tobytes()


@each_codec
def test_the_shape_and_the_strides_do_not_matter(codec: gc.Codec) -> None:
    payload = codec.encode(X.ravel(), seed=1).tobytes()
    padded = np.zeros((24, 50), np.float32)
    padded[::2, ::2] = X
    for same in (
        X,
        X.reshape(3, 4, 25),
        padded[::2, ::2],
        np.asfortranarray(X),
        X[::-1].copy()[::-1],
        X.astype(">f4"),
        np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(X.shape),
    ):
        assert codec.encode(same, seed=1).tobytes() == payload
    assert codec.decode(np.repeat(codec.encode(X), 2)[::2], X.size).shape == (X.size,)


@each_codec
def test_single_numbers(codec: gc.Codec) -> None:
    for x in (np.float32(-2), np.array(-2, np.float32), np.float16(-2), ml_dtypes.bfloat16(-2)):
        assert codec.decode(codec.encode(x), 1).tolist() == [-2]
    assert codec.encode(tf.constant(-2.0)).shape == (codec.payload_size(1),)


def test_seeds_wrap_round() -> None:
    codec = gc.Quantize(4, 32)
    for a, b in ((-1, 2**64 - 1), (2**63, -(2**63)), (5, 2**64 + 5), (np.uint8(7), 7)):
        np.testing.assert_array_equal(codec.encode(X, seed=a), codec.encode(X, seed=b))
        np.testing.assert_array_equal(codec.encode(X, step=a), codec.encode(X, step=b))
    payloads = {codec.encode(X, seed=a, step=b).tobytes() for a in (0, 1, -1) for b in (0, 1, -1)}
    assert len(payloads) == 9
    for bad in (1.5, True, "1", None):
        with pytest.raises(gc.CodecError, match="seed must be an integer"):
            codec.encode(X, seed=bad)
        with pytest.raises(gc.CodecError, match="step must be an integer"):
            codec.encode(X, step=bad)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3), "cannot encode float64: cast to float32 first"),
        (np.zeros(3, np.int32), "cannot encode int32: cast to float32"),
        (np.zeros(3, bool), "cannot encode bool: cast"),
        (np.zeros(3, np.complex64), "cannot encode complex64"),
        (np.array(["a"]), "cannot encode str"),
        (np.float64(1), "cannot encode float64"),
        (tf.zeros(3, tf.float64), "cannot encode float64: cast to float32 first"),
        (tf.zeros(3, tf.int64), "cannot encode int64"),
        ([1.0, 2.0], "expected a NumPy array or a TensorFlow tensor, got list"),
        (1.0, "got float"),
        (None, "got NoneType"),
        ("x", "got str"),
    ],
    ids=repr,
)
def test_inputs_that_are_refused(x: Any, message: str) -> None:
    for codec in (gc.FP16(), gc.TopK(0.1)):
        with pytest.raises(gc.CodecError, match=message):
            codec.encode(x)
        with pytest.raises(gc.CodecError, match=message):
            codec.encode_with_feedback(x, np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (np.zeros(5, np.uint8), r"expected a payload of uint8 \[6\], got uint8 \[5\]"),
        (np.zeros((3, 2), np.uint8), r"got uint8 \[3, 2\]"),
        (np.zeros(6, np.int8), r"got int8 \[6\]"),
        (np.zeros(0, np.uint8), r"got uint8 \[0\]"),
        (tf.zeros(7, tf.uint8), r"got uint8 \[7\]: was it encoded by the same codec"),
        (tf.zeros(6, tf.int32), r"got int32 \[6\]"),
        (b"123456", r"got bytes: np.frombuffer\(data, np.uint8\)"),
        ([0] * 6, "got list"),
    ],
)
def test_payloads_that_are_refused(payload: Any, message: str) -> None:
    with pytest.raises(gc.CodecError, match=message):
        gc.FP16().decode(payload, 3)


@pytest.mark.parametrize("numel", [-1, 2.0, True, None])
def test_element_counts_that_are_refused(numel: Any) -> None:
    with pytest.raises(gc.CodecError, match="numel must be"):
        gc.FP16().decode(np.zeros(4, np.uint8), numel)


def test_malformed_indices_are_a_codec_error_for_tensors_too() -> None:
    codec = gc.TopK(0.5)
    payload = np.full(codec.payload_size(8), 255, np.uint8)
    for foreign in (payload, tf.constant(payload)):
        with pytest.raises(gc.CodecError, match="payload"):
            codec.decode(foreign, 8)


# Feedback.


@each_codec
def test_residuals_of_arrays_are_updated_in_place(codec: gc.Codec) -> None:
    old = np.random.default_rng(1).standard_normal(X.shape).astype(np.float32)
    residual = old.copy()
    payload, returned = codec.encode_with_feedback(X, residual, seed=4)
    assert returned is residual
    decoded = codec.decode(payload, X.size).reshape(X.shape)
    np.testing.assert_array_equal(residual, (X + old) - decoded)

    wide = np.zeros((24, 50), np.float32)
    scattered = wide[::2, ::2]
    scattered[...] = old
    again, returned = codec.encode_with_feedback(X, scattered, seed=4)
    assert returned is scattered
    np.testing.assert_array_equal(again, payload)
    np.testing.assert_array_equal(scattered, residual)
    assert not wide[1::2].any() and not wide[:, 1::2].any()


def test_the_residual_of_a_single_number() -> None:
    residual = np.array(0.25, np.float32)
    payload, _ = gc.FP16().encode_with_feedback(np.float32(2**11), residual)
    assert gc.FP16().decode(payload, 1).tolist() == [2048] and residual == 0.25


@pytest.mark.parametrize(
    "residual",
    [
        None,
        np.zeros(4, np.float32),
        np.zeros((1, 3), np.float32),
        np.zeros(3),
        np.zeros(3, np.float16),
        tf.zeros(3),
        [0.0] * 3,
    ],
    ids=repr,
)
def test_residuals_that_are_refused(residual: Any) -> None:
    with pytest.raises(gc.CodecError, match=r"the residual must be float32 \[3\]"):
        gc.FP16().encode_with_feedback(np.zeros(3, np.float32), residual)


def test_residuals_that_cannot_be_written() -> None:
    residual = np.zeros(3, np.float32)
    residual.flags.writeable = False
    with pytest.raises(gc.CodecError, match="read-only"):
        gc.FP16().encode_with_feedback(np.zeros(3, np.float32), residual)


@each_codec
def test_feedback_conserves_what_was_given(codec: gc.Codec) -> None:
    residual = np.zeros(300, np.float32)
    given = np.zeros(300, np.float64)
    sent = np.zeros(300, np.float64)
    for step in range(30):
        x = np.random.default_rng(step).standard_normal(300).astype(np.float32)
        payload, _ = codec.encode_with_feedback(x, residual, step=step)
        given += x
        sent += codec.decode(payload, 300)
    np.testing.assert_allclose(sent + residual, given, rtol=0, atol=1e-4)


# Tensors.


@each_codec
def test_tensors_and_variables(codec: gc.Codec) -> None:
    payload = codec.encode(X, seed=2, step=3).tobytes()
    for x in (tf.constant(X), tf.Variable(X), keras.Variable(X)):
        encoded = codec.encode(x, seed=2, step=3)
        assert tf.is_tensor(encoded) and encoded.numpy().tobytes() == payload
        _, residual = codec.encode_with_feedback(x, tf.Variable(tf.zeros_like(X)))
        assert residual.shape == X.shape
    for dtype, narrow in ((np.float16, tf.float16), (ml_dtypes.bfloat16, tf.bfloat16)):
        expected = codec.encode(X.astype(dtype), seed=2).tobytes()
        assert codec.encode(tf.cast(X, narrow), seed=2).numpy().tobytes() == expected


def test_the_step_may_be_a_variable() -> None:
    codec, step = gc.Quantize(4, 32), tf.Variable(0, dtype=tf.int64)

    @tf.function
    def encode(x: tf.Tensor) -> tf.Tensor:
        return codec.encode(x, seed=9, step=step)

    for value in (0, 5, 2**40):
        step.assign(value)
        expected = codec.encode(X, seed=9, step=value)
        np.testing.assert_array_equal(encode(tf.constant(X)).numpy(), expected)


def test_a_shape_must_be_static() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def encode(x: tf.Tensor) -> tf.Tensor:
        return gc.FP16().encode(x)

    with pytest.raises(gc.CodecError, match="ensure_shape"):
        encode(tf.zeros([2, 3]))


def test_a_payload_of_unknown_size_is_checked_when_the_graph_runs() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.uint8)])
    def decode(payload: tf.Tensor) -> tf.Tensor:
        decoded = gc.FP16().decode(payload, 3)
        assert decoded.shape == (3,)
        return decoded

    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(decode(tf.constant(gc.FP16().encode(x))), x)
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(tf.zeros([5], tf.uint8))


# Codecs without a kernel.


class Sloppy(ArrayCodec):
    """Takes float32 for bytes."""

    name = "sloppy"

    def payload_size(self, numel: int) -> int:
        return 4 * numel

    def encode_array(self, x: Any, random: Any) -> Any:
        return x

    def decode_array(self, payload: Any, numel: int) -> Any:
        return payload.view(np.float32).tolist()


def test_an_array_codec_is_held_to_its_sizes_and_dtypes() -> None:
    x = np.zeros(3, np.float32)
    for same in (x, tf.constant(x)):
        with pytest.raises(gc.CodecError, match=r"Sloppy.encode_array returned float32 \[3\] inst"):
            Sloppy().encode(same)
    for payload in (np.zeros(12, np.uint8), tf.zeros(12, tf.uint8)):
        with pytest.raises(gc.CodecError, match=r"Sloppy.decode_array returned list \[3\] instead"):
            Sloppy().decode(payload, 3)


class Noise(ArrayCodec):
    """Sends random bits, whatever it is given."""

    name = "noise"

    def payload_size(self, numel: int) -> int:
        return 2 * numel

    def encode_array(self, x: Any, random: Any) -> Any:
        bits = random.bits()
        np.testing.assert_array_equal(random.uniform(), (bits * 2.0 + 1) / 2**17)
        return bits.astype("<u2").view(np.uint8)

    def decode_array(self, payload: Any, numel: int) -> Any:
        return payload.view("<u2").astype(np.float32)


def test_random_bits_of_a_cut_tensor_are_those_of_the_whole() -> None:
    x = np.zeros(200, np.float32)
    rng = (1, 2, 3, 0)
    whole, _ = Noise().encode_bucket([x], None, np.array([[0, 0, 200, 0, 7]], np.int64), rng)
    rows = np.array([[0, 0, 64, 0, 7], [0, 64, 136, 0, 7]], np.int64)
    for same in (x, tf.constant(x)):
        cut, _ = Noise().encode_bucket([same], None, rows, rng)
        np.testing.assert_array_equal(cut, whole)


def test_a_bucket_of_the_wrong_size_is_a_codec_error() -> None:
    rows = np.array([[0, 0, 64, 0, 7]], np.int64)
    for wire in (np.zeros(255, np.uint8), tf.zeros(255, tf.uint8)):
        with pytest.raises(gc.CodecError, match="expected 2 payloads of 128 bytes"):
            Noise().decode_bucket(wire, 2, rows, 1.0, [(64,)], ["float32"])


def test_the_bucket_of_an_array_codec_in_a_graph() -> None:
    rows = np.array([[0, 0, 64, 0, 7], [1, 0, 5, 0, 8]], np.int64)
    xs = [np.ones(64, np.float32), np.ones(5, ml_dtypes.bfloat16)]
    olds = [np.full(64, 0.5, np.float32), np.full(5, 0.5, np.float32)]
    chunk = np.full(69, 0.25, np.float32)
    scale = tf.constant(0.5)

    def exchange(xs: Any, olds: Any, chunk: Any, scale: Any) -> Any:
        payload, new = Noise().encode_bucket(xs, olds, rows, (1, 2, 0, 0))
        concat = tf.concat if tf.is_tensor(payload) else np.concatenate
        wire = concat([payload, payload], 0)
        second, left = Noise().reduce_bucket(wire, 2, chunk, rows, (1, 2, 0, 1), scale)
        outputs, finite = Noise().decode_bucket(
            second, 1, rows, 1.0, [(8, 8), (5,)], ["float32", "bfloat16"]
        )
        return [payload, *new, second, left, *outputs, finite]

    tensors = tf.function(exchange)(
        [tf.constant(x) for x in xs], [tf.constant(r) for r in olds], tf.constant(chunk), scale
    )
    assert [t.shape for t in tensors] == [(138,), (64,), (5,), (138,), (69,), (8, 8), (5,), ()]
    arrays = exchange(xs, olds, chunk, 0.5)
    for array, tensor in zip(arrays, tensors, strict=True):
        assert np.asarray(array).tobytes() == tensor.numpy().tobytes()
    assert arrays[1] is olds[0] and arrays[4] is chunk


def test_subnormals_survive_in_the_threads_of_tensorflow() -> None:
    class Copy(Sloppy):
        name = "copy_of_a_test"

        def encode_array(self, x: Any, random: Any) -> Any:
            return (x * np.float32(1)).view(np.uint8)

        def decode_array(self, payload: Any, numel: int) -> Any:
            return payload.view(np.float32) * np.float32(1)

    x = np.full(8, 1e-40, np.float32)
    there_and_back = tf.function(lambda x: Copy().decode(Copy().encode(x), 8))
    np.testing.assert_array_equal(there_and_back(tf.constant(x)).numpy(), x)
