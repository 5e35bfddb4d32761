"""The oracle itself: against published answers, other implementations and slow scalar loops."""

from __future__ import annotations

import ast
import math
import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradcomp import reference
from gradcomp.reference import KernelParams, Stream
from gradcomp.reference.floats import canonical, round_bfloat16, round_float16, to_dtype, widen
from gradcomp.reference.params import index_size
from gradcomp.reference.quantize import pack_codes, unpack_codes

NAN = 0x7FC00000


def from_bits(bits: object) -> np.ndarray:
    return np.asarray(bits, np.uint32).view(np.float32)


def bits_of(x: np.ndarray) -> list[int]:
    return np.asarray(x, np.float32).view(np.uint32).tolist()


def hexes(bits: np.ndarray) -> str:
    return " ".join(f"{v:04x}" for v in bits)


any_floats = hnp.arrays(np.uint32, st.integers(0, 200), elements=st.integers(0, 2**32 - 1)).map(
    from_bits
)
finite_floats = hnp.arrays(
    np.float32,
    st.integers(1, 200),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def test_it_imports_numpy_only() -> None:
    allowed = {"numpy", "gradcomp", *sys.stdlib_module_names}
    for path in Path(reference.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.partition(".")[0] in allowed, path
                assert not name.startswith("gradcomp") or name.startswith("gradcomp.reference")


# Random bits.

KNOWN_ANSWERS = [
    ("00000000 " * 4, "00000000 " * 4, "9c6ca96a e17eae66 fc10ecd4 5256a7d8"),
    ("ffffffff " * 4, "ffffffff " * 4, "2a881696 57012287 f6c7446e a16a6732"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0 082efa98 ec4e6c89",
        "59cd1dbb b8879579 86b5d00c ac8b6d84",
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_threefry_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    words = [np.array([int(word, 16)], np.uint32) for word in counter.split()]
    out = reference.threefry4x32(words, [int(word, 16) for word in key.split()], rounds=20)
    assert " ".join(f"{word[0]:08x}" for word in out) == answer


def test_every_element_takes_its_bits_from_the_documented_place() -> None:
    seed, step, rank, phase, stream = -5, 2**33 + 7, 3, 1, 9
    bits = Stream(seed, step, rank, phase, stream).bits(0, 700)
    key = [struct.unpack("<2I", struct.pack("<q", v)) for v in (seed, step)]
    for i in range(700):
        c = i // 128 * 16 + i % 16
        slot = i % 128 // 16
        counter = [np.array([w], np.uint32) for w in (c, 0, stream, 2 * rank + phase)]
        word = int(reference.threefry4x32(counter, [*key[0], *key[1]])[slot // 2][0])
        assert bits[i] == (word & 0xFFFF if slot % 2 == 0 else word >> 16)


@settings(deadline=None)
@given(start=st.integers(0, 2**45), count=st.integers(0, 300), skip=st.integers(0, 300))
def test_random_bits_depend_on_the_index_alone(start: int, count: int, skip: int) -> None:
    stream = Stream(1, 2, 3, 0, 4)
    whole = stream.bits(start, skip + count)
    np.testing.assert_array_equal(stream.bits(start + skip, count), whole[skip:])


def test_every_part_of_the_key_matters() -> None:
    base = Stream(1, 2, 3, 0, 4)
    others = [
        base._replace(seed=2),
        base._replace(seed=1 + 2**32),
        base._replace(step=3),
        base._replace(step=2 + 2**32),
        base._replace(rank=4),
        base._replace(phase=1),
        base._replace(stream=5),
    ]
    for other in others:
        # 64 equal draws of 16 bits would be a wonder; so would 3 among 64.
        assert np.count_nonzero(base.bits(0, 64) == other.bits(0, 64)) < 3


# Formats.


def test_canonical_changes_nans_only() -> None:
    x = from_bits([0x7F800001, 0xFFC12345, 0x7FC00000, 0x7F800000, 0x80000000, 1])
    assert bits_of(canonical(x)) == [NAN, NAN, NAN, 0x7F800000, 0x80000000, 1]


def half_by_struct(x: float) -> int:
    """float16 bits by the standard library, which rounds to nearest even."""
    try:
        return int.from_bytes(struct.pack("<e", x), "little")
    except OverflowError:
        return 0x7C00 | (0x8000 if x < 0 else 0)


def test_float16_rounds_to_nearest_even_everywhere() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (halves[:-1] + halves[1:]) / 2
    x = np.concatenate([halves, middle, np.nextafter(middle, 0), np.nextafter(middle, 1e9)])
    x = np.concatenate([x, -x]).astype(np.float32)
    expected = [half_by_struct(float(v)) for v in x]
    np.testing.assert_array_equal(round_float16(x, saturate=False), expected)


def test_float16_saturates_what_is_finite_and_nothing_else() -> None:
    x = from_bits([*bits_of([65504, 65519.996, 65520, 3e38, -65520, np.inf, -np.inf]), 0xFFC00001])
    saturated = round_float16(x, saturate=True)
    assert hexes(saturated) == "7bff 7bff 7bff 7bff fbff 7c00 fc00 7e00"
    plain = round_float16(x, saturate=False)
    assert hexes(plain) == "7bff 7bff 7c00 7c00 fc00 7c00 fc00 7e00"


@settings(deadline=None)
@given(any_floats)
def test_bfloat16_rounds_as_ml_dtypes_does(x: np.ndarray) -> None:
    bits = round_bfloat16(x, saturate=False)
    with np.errstate(all="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(bits[number], expected[number])
    assert (bits[~number] == 0x7FC0).all()


def test_bfloat16_saturates_what_is_finite_and_nothing_else() -> None:
    largest = 0x7F7F0000
    x = from_bits([largest, largest + 0x7FFF, largest + 0x8000, 0xFF7FFFFF, 0x7F800000, 0xFF800000])
    saturated = round_bfloat16(x, saturate=True)
    assert hexes(saturated) == "7f7f 7f7f 7f7f ff7f 7f80 ff80"
    plain = round_bfloat16(x, saturate=False)
    assert hexes(plain) == "7f7f 7f7f 7f80 ff80 7f80 ff80"


def test_widening_is_exact() -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = halves.view(dtype)
        np.testing.assert_array_equal(widen(x), x.astype(np.float32))


def test_output_dtypes() -> None:
    x = np.array([1, 65520, np.nan], np.float32)
    assert to_dtype(x, "float32") is x
    assert to_dtype(x, "float16").view(np.uint16).tolist() == [0x3C00, 0x7C00, 0x7E00]
    assert to_dtype(x, "bfloat16").view(np.uint16).tolist() == [0x3F80, 0x4780, 0x7FC0]
    with pytest.raises(ValueError, match="float64"):
        to_dtype(x, "float64")


def test_bfloat16_is_its_bits_where_numpy_does_not_know_it() -> None:
    script = (
        "import numpy as np; from gradcomp.reference.floats import to_dtype;"
        "out = to_dtype(np.float32([1, -2]), 'bfloat16'); print(out.dtype, out.tolist())"
    )
    run = [sys.executable, "-c", script]
    assert subprocess.run(run, check=True, capture_output=True, text=True).stdout.split("\n")[
        0
    ] == (f"uint16 {[0x3F80, 0xC000]}")


@settings(deadline=None)
@given(x=any_floats, family=st.sampled_from(["float32", "float16", "bfloat16"]))
def test_casts_come_back(x: np.ndarray, family: str) -> None:
    payload = reference.cast_encode(family, x)
    back = reference.cast_decode(family, payload)
    assert payload.size == reference.segment_size(KernelParams(family), x.size)
    np.testing.assert_array_equal(reference.cast_encode(family, back), payload)
    np.testing.assert_array_equal(np.isfinite(back), np.isfinite(x))


# Quantisation.


def scalar_scale(block: list[np.float32], bits: int) -> np.float32:
    """The scale of a block, one operation after the other."""
    qmax = np.float32(2 ** (bits - 1) - 1)
    if not all(map(math.isfinite, block)):
        return np.float32(np.nan)
    scale = max(map(abs, block)) / qmax
    if float(qmax) * float(scale) >= 2.0**128 - 2.0**103:
        scale = np.nextafter(scale, np.float32(0))
    return scale if scale >= 2.0**-126 else np.float32(0)


def scalar_codes(block: list[np.float32], bits: int, random: list[int] | None) -> list[int]:
    qmax = 2 ** (bits - 1) - 1
    if not scalar_scale(block, bits) > 0:
        return [0] * len(block)
    inverse = np.float32(qmax) / max(map(abs, block))
    codes = []
    for i, value in enumerate(block):
        y = np.float32(value * inverse)
        if random is None:
            q = round(float(y))
        else:
            u = np.float32(8 + (2 * random[i] + 1) / 2**17)
            q = math.floor(np.float32(y + u)) - 8
        codes.append(min(qmax, max(-qmax, q)))
    return codes


@settings(deadline=None)
@given(
    x=any_floats | finite_floats,
    bits=st.sampled_from([8, 4, 2]),
    block_size=st.sampled_from([32, 64]),
    stochastic=st.booleans(),
    start=st.integers(0, 5),
)
def test_quantisation_is_what_a_scalar_loop_does(
    x: np.ndarray, bits: int, block_size: int, stochastic: bool, start: int
) -> None:
    x = canonical(x)
    params = KernelParams("quantize", bits, block_size, stochastic)
    stream = Stream(1, 2, 3, 0, 4)
    first = start * block_size
    payload = reference.quantize_encode(params, x, first, stream)
    random = stream.bits(first, x.size).tolist() if stochastic else None
    scales, packed = b"", b""
    with np.errstate(all="ignore"):
        for at in range(0, x.size, block_size):
            block = list(x[at : at + block_size])
            scales += struct.pack("<I", bits_of([scalar_scale(block, bits)])[0])
            codes = scalar_codes(block, bits, random and random[at : at + block_size])
            size = -(-len(block) * bits // 8)
            for j in range(size):
                places = range(j, len(block), size)
                mask = 2**bits - 1
                packed += bytes(
                    [sum((codes[e] & mask) << (p * bits) for p, e in enumerate(places))]
                )
    assert payload.tobytes() == scales + packed
    assert payload.size == reference.segment_size(params, x.size)


@settings(deadline=None)
@given(x=finite_floats, bits=st.sampled_from([8, 4, 2]), stochastic=st.booleans())
def test_quantisation_keeps_finite_values_finite_and_near(
    x: np.ndarray, bits: int, stochastic: bool
) -> None:
    params = KernelParams("quantize", bits, 32, stochastic)
    payload = reference.quantize_encode(params, x, 0, Stream(0, 0, 0, 0, 0))
    back = reference.quantize_decode(params, payload, x.size)
    scales = payload[: 4 * -(-x.size // 32)].view("<f4").astype(np.float64)
    absmax = np.array([np.abs(x[at : at + 32]).max() for at in range(0, x.size, 32)], np.float64)
    steps = 1 if stochastic else 0.5
    bound = np.where(scales > 0, scales * (steps + 2.0**-14), absmax)
    error = np.abs(x.astype(np.float64) - back.astype(np.float64))
    assert (error <= np.repeat(bound, 32)[: x.size]).all()


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_the_largest_floats_and_the_smallest_scale(bits: int) -> None:
    qmax = 2 ** (bits - 1) - 1
    params = KernelParams("quantize", bits, 32)
    for bits_of_x in (*range(0x7F7FFF00, 0x7F800000, 17), 0x7F7FFFFF):
        x = from_bits([bits_of_x])
        payload = reference.quantize_encode(params, x, 0, Stream(0, 0, 0, 0, 0))
        assert np.isfinite(reference.quantize_decode(params, payload, 1)).all()
    smallest = np.float32(2.0**-126) * np.float32(qmax)
    below = np.nextafter(smallest, np.float32(0))
    for x, code in ((smallest, qmax), (below, 0)):
        payload = reference.quantize_encode(
            params, np.array([x], np.float32), 0, Stream(0, 0, 0, 0, 0)
        )
        assert payload[4] == code
        assert (payload[:4].view("<f4")[0] > 0) == (code > 0)


@settings(deadline=None)
@given(
    bits=st.sampled_from([8, 4, 2]),
    blocks=st.integers(0, 3),
    m=st.integers(1, 40),
    data=st.data(),
)
def test_codes_come_back_from_packing(bits: int, blocks: int, m: int, data: st.DataObject) -> None:
    half = 2 ** (bits - 1)
    codes = data.draw(hnp.arrays(np.int32, (blocks, m), elements=st.integers(-half, half - 1)))
    packed = pack_codes(codes, bits)
    assert packed.shape == (blocks, -(-m * bits // 8))
    np.testing.assert_array_equal(unpack_codes(packed, m, bits), codes)


# Indices and top-k.


@st.composite
def index_lists(draw: st.DrawFn) -> tuple[list[int], int]:
    numel = draw(st.integers(1, 3000))
    index = draw(st.sets(st.integers(0, numel - 1), min_size=1, max_size=min(numel, 60)))
    return sorted(index), numel


def index_bits(index: list[int], numel: int) -> bytes:
    """Elias–Fano by whole numbers: each part is one large integer."""
    k = len(index)
    low = int(math.log2(numel // k))
    lower = sum((v % 2**low) << (i * low) for i, v in enumerate(index))
    upper = sum(1 << (i + (v >> low)) for i, v in enumerate(index))
    length = k + ((numel - 1) >> low)
    return lower.to_bytes(-(-k * low // 8), "little") + upper.to_bytes(-(-length // 8), "little")


@settings(deadline=None)
@given(index_lists())
def test_indices_come_back(case: tuple[list[int], int]) -> None:
    index, numel = case
    payload = reference.elias_fano_encode(np.array(index, np.int64), numel)
    assert payload.tobytes() == index_bits(index, numel)
    assert payload.size == index_size(numel, len(index))
    back = reference.elias_fano_decode(payload, numel, len(index))
    assert back.tolist() == index


@settings(deadline=None)
@given(case=index_lists(), data=st.data())
def test_foreign_indices_are_refused_or_are_their_only_encoding(
    case: tuple[list[int], int], data: st.DataObject
) -> None:
    index, numel = case
    size = index_size(numel, len(index))
    payload = data.draw(hnp.arrays(np.uint8, size) | st.just(None))
    if payload is None:
        payload = reference.elias_fano_encode(np.array(index, np.int64), numel)
        payload[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        back = reference.elias_fano_decode(payload, numel, len(index))
    except ValueError:
        return
    assert len(back) == len(index) and back[0] >= 0 and back[-1] < numel
    np.testing.assert_array_equal(reference.elias_fano_encode(back, numel), payload)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("29 25 00", "2 bytes, got 3"),
        ("29 a5", "padding"),
        ("69 25", "padding"),
        ("29 24", "found 2"),
        ("29 27", "found 4"),
        ("3a 07", "increase"),  # 2, 2, 3
        ("3f 64", "reach 20"),  # the last is 19 + 4
    ],
)
def test_malformed_indices(payload: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        reference.elias_fano_decode(np.frombuffer(bytes.fromhex(payload), np.uint8), 20, 3)


@settings(deadline=None)
@given(x=any_floats | hnp.arrays(np.float32, 50, elements=st.sampled_from([0, -1, 1, np.inf])))
def test_selection_is_by_magnitude_then_index(x: np.ndarray) -> None:
    x = canonical(x)
    for kept in {0, 1, x.size // 3, x.size} - ({1} if x.size == 0 else set()):
        rank = sorted(range(x.size), key=lambda i: (-(bits_of(x)[i] & 0x7FFFFFFF), i))
        assert reference.topk_select(x, kept).tolist() == sorted(rank[:kept])


def test_values_follow_the_indices_and_add_to_zero() -> None:
    params = KernelParams("topk", values="float32")
    x = np.array([0.5, -0.0, 3, -0.0], np.float32)
    payload = reference.topk_encode(params, x, 4, Stream(0, 0, 0, 0, 0))
    assert payload[index_size(4, 4) :].view("<u4").tolist() == bits_of(x)
    assert bits_of(reference.topk_decode(params, payload, 4, 4)) == bits_of(np.abs(x))
