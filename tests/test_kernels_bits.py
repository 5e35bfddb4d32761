"""Masks and codes of few bits: the CPU kernels and the ops equal the oracle, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from kernel_cases import Guarded, assert_same

import gradcomp as gc
from gradcomp import _native, reference
from gradcomp.activations.masks import code_width, pack_codes, unpack_codes
from gradcomp.kernels.bits import pack_bits, unpack_bits

WIDTHS = (1, 2, 4, 8)
every_width = pytest.mark.parametrize("bits", WIDTHS)
RUN = 4 << 16  # codes that one thread packs at a time


def codes(numel: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, numel]).integers(0, 256, numel, np.uint8)


def check(x: np.ndarray, bits: int, misalignment: int = 0) -> None:
    """Packs, and unpacks what is packed and other bytes, as the oracle does."""
    want = reference.pack_bits(x, bits)
    given, out = Guarded(x, misalignment), Guarded(np.zeros_like(want), misalignment)
    _native.pack_bits(given.array, bits, out.array)
    assert_same(out.array, want, "packed")
    out.check("packed")
    for packed in (want, codes(want.size, 1)):
        given, out = Guarded(packed, misalignment), Guarded(np.zeros_like(x), misalignment)
        _native.unpack_bits(given.array, bits, out.array)
        assert_same(out.array, reference.unpack_bits(packed, bits, x.size), "codes")
        out.check("codes")


@every_width
def test_every_length_at_every_misalignment(bits: int) -> None:
    for numel in range(70):
        for misalignment in range(8):
            check(codes(numel), bits, misalignment)


@every_width
def test_several_threads(bits: int) -> None:
    before = gc.get_num_threads()
    try:
        for threads in (1, 3):
            gc.set_num_threads(threads)
            for numel in (RUN - 1, RUN, RUN + 1, 3 * RUN + 5):
                check(codes(numel), bits)
    finally:
        gc.set_num_threads(before)


@every_width
def test_the_oracle(bits: int) -> None:
    x = codes(37) & ((1 << bits) - 1)
    packed = reference.pack_bits(x, bits)
    assert packed.size == -(-37 * bits // 8)
    np.testing.assert_array_equal(reference.unpack_bits(packed, bits, 37), x)
    for i, code in enumerate(x):  # where the layout says that it is
        assert packed[i * bits // 8] >> (i * bits % 8) & ((1 << bits) - 1) == code
    used = 37 * bits % 8
    assert not used or packed[-1] >> used == 0


@every_width
def test_ops_equal_the_oracle(bits: int) -> None:
    x = codes(3 * 5 * 7).reshape(3, 5, 7)
    want = reference.pack_bits(x.reshape(-1), bits)
    back = reference.unpack_bits(want, bits, x.size).reshape(x.shape)
    shape = tf.constant(x.shape, tf.int64)
    for run in (lambda f: f, tf.function):
        packed = run(lambda x: pack_bits(x, bits))(tf.constant(x))
        assert_same(packed.numpy(), want, "packed")
        made = run(lambda p: unpack_bits(p, bits, shape, tf.uint8))(packed)
        assert_same(made.numpy(), back, "codes")


@pytest.mark.parametrize("signature", [None, [tf.TensorSpec([None, 7], tf.bool)]])
def test_masks(signature: list[tf.TensorSpec] | None) -> None:
    mask = tf.constant(codes(35).reshape(5, 7) % 2 == 1)

    def there_and_back(mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        packed = pack_codes(mask, 1)
        return packed.payload, unpack_codes(packed, [mask])

    payload, again = tf.function(there_and_back, input_signature=signature)(mask)
    assert payload.shape == [5]
    np.testing.assert_array_equal(again, mask)
    np.testing.assert_array_equal(there_and_back(mask)[1], mask)


def test_code_width() -> None:
    assert [code_width(n) for n in (2, 3, 4, 5, 9, 16, 17, 256, 257)] == [1, 2, 2, 4, 4, 4, 8, 8, 0]


def test_errors_name_the_value() -> None:
    out = np.zeros(3, np.uint8)
    with pytest.raises(ValueError, match="bits is 3, not 1, 2, 4 or 8"):
        _native.pack_bits(codes(8), 3, out)
    with pytest.raises(ValueError, match="packed has 3 elements, not 1"):
        _native.pack_bits(codes(8), 1, out)
    with pytest.raises(ValueError, match="packed has 3 elements, not 2"):
        _native.unpack_bits(out, 1, codes(16))
    with pytest.raises(tf.errors.InvalidArgumentError, match="bits is 3, not 1, 2, 4 or 8"):
        pack_bits(tf.constant(codes(8)), 3)
    packed = tf.constant(codes(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="packed has 3 bytes, and 16 codes"):
        unpack_bits(packed, 1, tf.constant([16], tf.int64), tf.bool)
    for shape in ([-1], [2**40, 2**40]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="negative or makes the tensor"):
            unpack_bits(packed, 1, tf.constant(shape, tf.int64), tf.bool)
