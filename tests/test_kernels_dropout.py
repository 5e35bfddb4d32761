"""Dropout by masks: the CPU kernels and the ops equal the oracle, and keep what TensorFlow does."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from kernel_cases import DTYPES, KINDS, Array, Guarded, assert_same, dtype_of, numbers

import gradcomp as gc
from gradcomp import _native, kernels, reference
from gradcomp.kernels.dropout import apply_mask, draw_mask

KEY, COUNTER = 0x0123456789ABCDEF, (0xFEDCBA9876543210, 0x0F1E2D3C4B5A6978)
RUN = 1 << 16  # elements that one thread works on at a time
FRACTION_BITS = dict(zip(DTYPES, (23, 10, 7), strict=True))
every_dtype = pytest.mark.parametrize("dtype", DTYPES)

# Random123's for philox4x32 with 10 rounds: counter, key, answer.
KNOWN = (
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
)


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize("known", KNOWN)
def test_philox_gives_the_published_answers(known: tuple[str, str, str]) -> None:
    counter, key, answer = map(words, known)
    made = reference.philox4x32([np.array([word], np.uint32) for word in counter], key)
    assert tuple(int(word[0]) for word in made) == answer
    assert tuple(_native.philox4x32(key, counter)) == answer


def check_draw(
    numel: int,
    misalignment: int = 0,
    *,
    counter: tuple[int, int] = COUNTER,
    bits: int = 23,
    threshold: int = 0x2AAAAA,
) -> Array:
    want = reference.draw_mask(KEY, counter, bits, threshold, numel)
    out = Guarded(np.full_like(want, 7), misalignment)
    _native.draw_mask(KEY, counter, bits, threshold, numel, out.array)
    assert_same(out.array, want, f"mask of {numel}")
    out.check("mask")
    return want


def check_apply(
    x: Array, packed: Array, scale: float, at: tuple[int, int, int] = (0, 0, 0)
) -> None:
    """Of x, mask and result at these misalignments; then in place."""
    want = reference.apply_mask(x, packed, scale)
    given, mask, out = Guarded(x, at[0]), Guarded(packed, at[1]), Guarded(np.zeros_like(x), at[2])
    _native.apply_mask(given.array, mask.array, scale, out.array)
    assert_same(out.array, want, "result")
    assert_same(given.array, x, "x")
    out.check("result")
    _native.apply_mask(given.array, mask.array, scale, given.array)
    assert_same(given.array, want, "result in place")
    given.check("x")


def any_bytes(size: int) -> Array:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


def test_masks_of_every_length_at_every_misalignment() -> None:
    for numel in range(131):
        for misalignment in range(8):
            check_draw(numel, misalignment)


@every_dtype
def test_every_length_is_masked_at_every_misalignment(dtype: str) -> None:
    for numel in range(131):
        x, packed = numbers("special", numel, dtype=dtype), any_bytes(-(-numel // 8))
        for at in range(8):
            check_apply(x, packed, 1.25, (at, 3 * at % 8, 5 * at % 8))


@every_dtype
@pytest.mark.parametrize("threads", [1, 3])
def test_several_threads(dtype: str, threads: int) -> None:
    before = gc.get_num_threads()
    try:
        gc.set_num_threads(threads)
        for numel in (RUN - 1, RUN, RUN + 1, 3 * RUN + 5):
            packed = check_draw(numel, bits=FRACTION_BITS[dtype], threshold=40)
            check_apply(numbers("normal", numel, dtype=dtype), packed, 1.1)
    finally:
        gc.set_num_threads(before)


@every_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_all_numbers(kind: str, dtype: str) -> None:
    x = numbers(kind, 1000, dtype=dtype)
    for scale in (0.0, 1.0, 1.1, 2.0, 1e30, np.inf):
        check_apply(x, any_bytes(125), scale)


def test_what_goes_is_zero_whatever_it_was() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -1, -0.0], np.float32)
    made = reference.apply_mask(x, np.zeros(1, np.uint8), -np.inf)
    assert not made.view(np.uint32).any()
    kept = reference.apply_mask(x, np.array([0xFF], np.uint8), 0.5)
    assert_same(kept, np.array([np.nan, np.inf, -np.inf, -0.5, -0.0], np.float32), "what is kept")


# Counters near the ends of their words; the last wraps round to zero.
@pytest.mark.parametrize(
    "counter",
    [(2**32 - 3, 5), (2**64 - 1, 0), (2**64 - 7, 2**32 - 1), (2**64 - 9, 2**64 - 1)],
)
def test_the_counter_carries(counter: tuple[int, int]) -> None:
    mask = check_draw(97, counter=counter)
    first = counter[0] + (counter[1] << 64)
    later = [(first + 12) % 2**128 >> shift & (2**64 - 1) for shift in (0, 64)]
    tail = reference.draw_mask(KEY, later, 23, 0x2AAAAA, 97 - 48)
    assert_same(mask[6:], tail, "the mask from element 48 on")


def test_the_oracle_keeps_what_the_definition_says() -> None:
    key = (KEY & 0xFFFFFFFF, KEY >> 32)
    for bits, threshold in ((23, 1 << 22), (10, 300), (7, 127), (1, 1)):
        kept = np.unpackbits(
            reference.draw_mask(KEY, COUNTER, bits, threshold, 50), bitorder="little"
        )
        for i in range(50):
            at = COUNTER[0] + (COUNTER[1] << 64) + i // 4
            counter = tuple(at >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96))
            word = _native.philox4x32(key, counter)[i % 4]
            assert kept[i] == (word % 2**bits >= threshold)
        assert not kept[50:].any()


@pytest.mark.parametrize("bits", [1, 7, 10, 23])
def test_thresholds_at_the_ends(bits: int) -> None:
    for numel in (5, 64, 131):
        all_of_them = np.packbits(np.ones(numel, np.uint8), bitorder="little")
        assert_same(check_draw(numel, bits=bits, threshold=0), all_of_them, "all")
        assert not check_draw(numel, bits=bits, threshold=2**bits).any()
        check_draw(numel, bits=bits, threshold=1)
        check_draw(numel, bits=bits, threshold=2**bits - 1)


def test_arrays_that_do_not_fit() -> None:
    x, packed = np.zeros(9, np.float32), np.zeros(2, np.uint8)
    with pytest.raises(ValueError, match="packed has 2 elements, not 3"):
        _native.draw_mask(1, (2, 3), 23, 0, 17, packed)
    with pytest.raises(ValueError, match="numel is -1, a negative number"):
        _native.draw_mask(1, (2, 3), 23, 0, -1, packed)
    for bits, threshold in ((0, 0), (24, 0), (-1, 0), (7, -1), (7, 129)):
        match = f"fraction_bits is {bits}, not 1 to 23, or threshold is {threshold}, not 0 to 2"
        with pytest.raises(ValueError, match=match):
            _native.draw_mask(1, (2, 3), bits, threshold, 9, packed)
    with pytest.raises(ValueError, match="packed has 1 elements, not 2"):
        _native.apply_mask(x, packed[:1], 1.0, x)
    with pytest.raises(ValueError, match="x has dtype float64, not float32, float16 or bfloat16"):
        _native.apply_mask(x.astype(float), packed, 1.0, x)
    for y in (x[:8], x.astype(np.float16)):
        match = f"y has {y.size} elements of {y.dtype}, not 9 of float32"
        with pytest.raises(ValueError, match=match):
            _native.apply_mask(x, packed, 1.0, y)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="y is read-only"):
        _native.apply_mask(x, packed, 1.0, x)
    with pytest.raises(ValueError, match="x is not C-contiguous"):
        _native.apply_mask(np.zeros(18, np.float32)[::2], packed, 1.0, np.zeros(9, np.float32))


@every_dtype
def test_ops_keep_what_tensorflow_keeps(dtype: str) -> None:
    drawn = tf.function(draw_mask)
    for shape in ((0,), (1,), (63,), (64,), (65,), (3, 5, 7), (90, 401)):
        x = tf.ones(shape, dtype)
        for rate in (0.0, 0.1, 0.5, 0.999, 1.0):
            seed = tf.constant([5, len(shape)], tf.int32)
            uniform = tf.random.stateless_uniform(shape, seed, dtype=dtype)
            kept = (uniform >= tf.constant(rate, dtype)).numpy()
            want = np.packbits(kept.reshape(-1), bitorder="little")
            assert_same(draw_mask(seed, x, rate).numpy(), want, "mask")
            assert_same(drawn(seed, x, rate).numpy(), want, "mask in a function")
            if rate < 1:
                dropped = tf.nn.experimental.stateless_dropout(x, rate, seed)
                np.testing.assert_array_equal(dropped.numpy() != 0, kept)


@every_dtype
def test_ops_equal_the_oracle(dtype: str) -> None:
    for kind in ("special", "tiny", "bits"):
        x = numbers(kind, 3 * 500 * 7, dtype=dtype).reshape(3, 500, 7)
        packed = any_bytes(-(-x.size // 8))
        for scale in (1.0, 1 / 0.9):
            want = reference.apply_mask(x, packed, np.asarray(scale, x.dtype))
            for run in (lambda f: f, tf.function):
                apply = run(lambda x, packed, scale=scale: apply_mask(x, packed, scale))
                made = apply(tf.constant(x), tf.constant(packed))
                assert_same(made.numpy(), want, "result")


@every_dtype
def test_shapes_that_are_unknown(dtype: str) -> None:
    x, seed = numbers("normal", 105, dtype=dtype).reshape(5, 3, 7), [3, 2**40]

    def both(seed: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        packed = draw_mask(seed, x, 0.25)
        return packed, apply_mask(x, packed, 4 / 3)

    want = [t.numpy() for t in both(tf.constant(seed, tf.int64), tf.constant(x))]
    for shape in ([None, 3, 7], None):
        specs = [tf.TensorSpec([2], tf.int64), tf.TensorSpec(shape, dtype)]
        made = tf.function(both, input_signature=specs)
        for got, wanted in zip(made(seed, x), want, strict=True):
            assert_same(got.numpy(), wanted, "what is made of an unknown shape")
    assert 0 < np.unpackbits(want[0]).sum() < 105


def test_memory_is_taken_over_from_nobody_who_still_reads_it() -> None:
    x, packed = tf.constant(numbers("normal", 999)), tf.constant(any_bytes(125))
    want = reference.apply_mask(x.numpy() * np.float32(2), packed.numpy(), 3.0)

    def apply(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        alone, shared = x * 2, x + x
        return apply_mask(alone, packed, 3.0), apply_mask(shared, packed, 3.0), shared + 0

    for run in (apply, tf.function(apply)):
        before = x.numpy()
        alone, of_shared, shared = run(x)
        assert_same(alone.numpy(), want, "of a tensor that is read once")
        assert_same(of_shared.numpy(), want, "of a tensor that is read twice")
        assert_same(shared.numpy(), before * np.float32(2), "the tensor that is read twice")
        assert_same(x.numpy(), before, "x")


def test_errors_of_ops_name_the_value() -> None:
    ops = kernels.load_ops()
    key, counter = tf.constant([1], tf.uint64), tf.constant([2, 3], tf.uint64)
    given = {"key": key, "counter": counter, "dims": [9], "fraction_bits": 23, "threshold": 5}
    assert ops.gradcomp_draw_mask(**given).shape == [2]
    for change, message in (
        ({"fraction_bits": 0}, "fraction_bits is 0, not 1 to 23"),
        ({"fraction_bits": 24}, "fraction_bits is 24, not 1 to 23"),
        ({"threshold": -1}, r"threshold is -1, not 0 to 2\^23"),
        ({"fraction_bits": 7, "threshold": 129}, r"threshold is 129, not 0 to 2\^7"),
        ({"key": counter}, r"key has shape \[2\], not \[1\]"),
        ({"counter": key}, r"counter has shape \[1\], not \[2\]"),
        ({"dims": [-1]}, "negative or makes the tensor too large"),
        ({"dims": [2**40, 2**40]}, "negative or makes the tensor too large"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            ops.gradcomp_draw_mask(**(given | change))
    with pytest.raises(tf.errors.InvalidArgumentError, match="packed has 3 bytes, and 16 elements"):
        apply_mask(tf.zeros([16]), tf.zeros([3], tf.uint8), 1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"scale has shape \[2\]"):
        ops.gradcomp_apply_mask(x=tf.zeros([8]), packed=tf.zeros([1], tf.uint8), scale=[1.0, 2.0])


def test_what_the_cases_are() -> None:
    for dtype in DTYPES:
        x = numbers("special", 1000, dtype=dtype).astype(np.float32)
        tiny = numbers("tiny", 1000, dtype=dtype).astype(np.float32)
        assert np.isnan(x).any() and np.isinf(x).any()
        assert dtype == "float16" or (np.abs(tiny[tiny != 0]) < 2.0**-126).any()
    assert dtype_of("float16").itemsize == 2
