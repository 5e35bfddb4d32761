"""Proves what a codec claims. For authors of codecs: call `check_codec` in a test of your own."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from gradcomp.codecs import Codec, codec
from gradcomp.errors import CodecError

_LENGTHS = (0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 2049)
_SEEDS = 256
# Standard errors that a mean may be off; by chance that happens to one codec in a hundred million.
_Z = 6.0
# Random bits come in 16, so that a probability may be off by half of 2⁻¹⁶, and roundings add to it.
_GRAIN = 2.0**-15


def check_codec(tested: Codec) -> None:
    """Proves that a codec keeps its claims, on a few thousand small inputs; takes a second or two.

    Its value semantics, exact payload sizes, error bound, unbiasedness, residuals, sums over
    ranks, treatment of non-finite values and of bytes that are no payload, and, where TensorFlow
    is installed, that tensors give the same bytes as arrays.

    Args:
      tested: any codec, with a native kernel or without.
    Raises:
      AssertionError: names the codec, the claim that does not hold, and a case.
    """
    for check in (
        _check_value,
        _check_sizes,
        _check_repeatable,
        _check_error_bound,
        _check_unbiased,
        _check_residual,
        _check_bucket,
        _check_non_finite,
        _check_foreign_bytes,
        _check_tensors,
    ):
        try:
            check(tested)
        except CodecError as error:
            _fail(tested, "it encodes all floats and decodes what it encoded", str(error))


def _fail(tested: Codec, claim: str, case: str) -> NoReturn:
    raise AssertionError(f"{tested!r} does not keep the claim that {claim}: {case}")


def _samples(numel: int) -> Iterator[tuple[str, np.ndarray]]:
    """Named float32 arrays [numel], all finite, that have found faults before."""
    random = np.random.default_rng(numel)
    normal = random.standard_normal(numel)
    yield "normal values", normal.astype(np.float32)
    yield "heavy tails", (normal**9).astype(np.float32)
    yield "mostly zeros", (normal * (random.random(numel) < 0.05)).astype(np.float32)
    yield "ties", np.sign(normal).astype(np.float32)
    yield "zeros", np.zeros(numel, np.float32)
    yield "negative zeros", np.full(numel, -0.0, np.float32)
    yield "subnormals", (normal * 1e-40).astype(np.float32)
    yield "huge values", np.clip(normal * 1e38, -3.4e38, 3.4e38).astype(np.float32)


def _check_value(tested: Codec) -> None:
    """It is an immutable value with a spec and a config."""
    same = dataclasses.replace(tested)
    if same != tested or hash(same) != hash(tested):
        _fail(tested, "codecs with equal options are equal and hash alike", f"{same!r} differs")
    if codec(tested.spec) != tested:
        _fail(tested, "its spec stands for it", f"{tested.spec!r} is {codec(tested.spec)!r}")
    config = tested.get_config()
    for source in (Codec, type(tested)):
        back = source.from_config(json.loads(json.dumps(config)))
        if back != tested:
            _fail(tested, "its config stands for it, also as JSON", f"{config} makes {back!r}")
    for field in dataclasses.fields(tested):
        try:
            setattr(tested, field.name, getattr(tested, field.name))
        except dataclasses.FrozenInstanceError:
            continue
        _fail(tested, "it is immutable", f"{field.name} can be set")


def _check_sizes(tested: Codec) -> None:
    for numel in _LENGTHS:
        size = tested.payload_size(numel)
        for name, x in _samples(numel):
            payload = tested.encode(x)
            if payload.dtype != np.uint8 or payload.shape != (size,):
                got = f"encode gives {payload.dtype} {list(payload.shape)} for {numel} {name}"
                _fail(tested, f"payload_size({numel}) is {size}", got)
            decoded = tested.decode(payload, numel)
            if decoded.dtype != np.float32 or decoded.shape != (numel,):
                got = f"{decoded.dtype} {list(decoded.shape)} for {numel} {name}"
                _fail(tested, "decode gives float32 [numel]", got)


def _check_repeatable(tested: Codec) -> None:
    for name, x in _samples(257):
        before = x.copy()
        first = tested.encode(x, seed=-3, step=2**40)
        if not np.array_equal(x.view(np.uint32), before.view(np.uint32)):
            _fail(tested, "encode leaves its input alone", name)
        for what, again in (("again", x), ("in another shape", x.reshape(1, 257))):
            if not np.array_equal(first, tested.encode(again, seed=-3, step=2**40)):
                _fail(tested, "equal seeds give equal bytes", f"{name}, encoded {what}")
        with np.errstate(over="ignore"):
            half = x.astype(np.float16)
        if not np.array_equal(tested.encode(half), tested.encode(half.astype(np.float32))):
            _fail(tested, "float16 is widened before it is encoded", name)


def _check_error_bound(tested: Codec) -> None:
    for numel in _LENGTHS:
        for name, x in _samples(numel):
            bound = np.asarray(tested.error_bound(x), np.float64)
            decoded = tested.decode(tested.encode(x, seed=numel), numel)
            _check_within(tested, bound, x, decoded, f"{numel} {name}")


def _check_within(
    tested: Codec, bound: np.ndarray, x: np.ndarray, decoded: np.ndarray, name: str
) -> None:
    error = np.abs(x.astype(np.float64) - decoded.astype(np.float64))
    off = np.flatnonzero(~(error <= bound))
    if off.size:
        i = off[0]
        case = f"{name}: {x[i]!r} decodes to {decoded[i]!r}, {error[i]} off, bound {bound[i]}"
        _fail(tested, "errors stay within error_bound", case)


def _check_unbiased(tested: Codec) -> None:
    """Mean errors over seeds, along several directions, are no larger than chance makes them.

    The standard error is measured, so that it holds for any dependence between elements; the
    measured variance itself is bounded, since every error is within `error_bound`.
    """
    x = np.random.default_rng(1).standard_normal(1024).astype(np.float32)
    encoders: dict[bool, Callable[[int], Any]] = {
        False: lambda seed: tested.encode(x, seed=seed),
        True: lambda seed: tested.encode_with_feedback(x, np.zeros_like(x), seed=seed)[0],
    }
    signs = np.random.default_rng(2).choice([-1.0, 1.0], (x.size, 14))
    directions = np.column_stack([np.ones(x.size), np.sign(x), signs])
    for feedback, encode in encoders.items():
        if not tested.unbiased(feedback):
            continue
        errors = np.stack([tested.decode(encode(seed), x.size) for seed in range(_SEEDS)]) - x
        along = errors.astype(np.float64) @ directions
        standard_error = along.std(axis=0, ddof=1) / np.sqrt(_SEEDS)
        allowed = _Z * standard_error + _GRAIN * np.abs(errors).max(axis=0).sum()
        bias = np.abs(along.mean(axis=0))
        worst = int(np.argmax(bias - allowed))
        if bias[worst] > allowed[worst]:
            case = f"a mean error of {bias[worst]:.3g} where chance explains {allowed[worst]:.3g}"
            _fail(tested, f"it is unbiased (feedback={feedback})", f"{case}, of {_SEEDS} seeds")


def _check_residual(tested: Codec) -> None:
    """The residual is what the payload drops: x + residual = decode(payload) + new residual."""
    claim = "corrected = decode(payload) + residual"
    for numel in (0, 1, 65, 1000):
        for name, x in _samples(numel):
            shares = np.random.default_rng(3).uniform(-1, 0, numel).astype(np.float32)
            old = shares * x
            corrected = x + old
            residual = old.copy()
            payload, returned = tested.encode_with_feedback(x, residual, seed=numel)
            if returned is not residual:
                _fail(tested, "an array of residuals is updated in place", name)
            decoded = tested.decode(payload, numel)
            left = corrected.astype(np.float64) - decoded
            # Exact where nothing or all was sent; elsewhere the difference is rounded once.
            rounding = np.where((decoded == 0) | (left == 0), 0, np.abs(left) * 2.0**-24)
            off = np.flatnonzero(~(np.abs(left - residual) <= rounding + 2.0**-150 * (left != 0)))
            if off.size:
                i = off[0]
                case = f"{numel} {name}: {corrected[i]!r}, {decoded[i]!r}, {residual[i]!r}"
                _fail(tested, claim, case)


def _check_bucket(tested: Codec) -> None:
    """Two tensors, one of them cut, from three ranks: the sum in rank order, and its two phases."""
    cut = tested.cut
    numels = (2 * cut + 5, 33)
    lengths = (cut, cut + 5, 33)
    rows = zip((0, 0, 1), (0, cut, 0), lengths, strict=True)
    table = np.array([(t, at, n, tested.kept(n), 7 + t) for t, at, n in rows], np.int64)
    size = sum(tested.payload_size(n) for n in lengths)
    random = np.random.default_rng(4)

    def decode(payloads: Any, world: int, scale: float) -> tuple[np.ndarray, bool]:
        shapes = [(n,) for n in numels]
        out, finite = tested.decode_bucket(payloads, world, table, scale, shapes, ["float32"] * 2)
        return np.concatenate(out), finite

    payloads, values = [], []
    for rank in range(3):
        xs = [random.standard_normal(n).astype(np.float32) for n in numels]
        payload, _ = tested.encode_bucket(xs, None, table, (1, 2, rank, 0))
        if payload.shape != (size,):
            _fail(tested, "segments are sized by payload_size", f"{payload.shape} is not {size}")
        x, (d, _) = np.concatenate(xs), decode(payload, 1, 1.0)
        parts = np.split(x, np.cumsum(lengths)[:-1])
        bound = np.concatenate([tested.error_bound(part) for part in parts])
        _check_within(tested, bound.astype(np.float64), x, d, f"a cut tensor of rank {rank}")
        payloads.append(payload)
        values.append(d)
    wire, scale = np.concatenate(payloads), float(np.float32(1 / 3))
    total = ((values[0] + values[1]) + values[2]) * np.float32(scale)
    summed, finite = decode(wire, 3, scale)
    if not finite or not np.array_equal(summed, total):
        _fail(tested, "payloads are summed in rank order, then scaled", "three ranks")
    if "two_phase" in tested.routes:
        residual = np.zeros_like(total)
        payload, left = tested.reduce_bucket(wire, 3, residual, table, (1, 2, 0, 1), scale)
        sent, _ = decode(payload, 1, 1.0)
        if (total - sent).tobytes() != residual.tobytes() or left is not residual:
            _fail(tested, "the second phase keeps what it drops", "three ranks")


def _check_non_finite(tested: Codec) -> None:
    for numel in (1, 65, 1000):
        for bad in (np.nan, np.inf, -np.inf):
            for at in {0, numel // 2, numel - 1}:
                x = np.random.default_rng(5).standard_normal(numel).astype(np.float32)
                x[at] = bad
                fed, _ = tested.encode_with_feedback(x, np.zeros_like(x))
                for payload in (tested.encode(x), fed):
                    if np.isfinite(tested.decode(payload, numel)).all():
                        case = f"{bad} at {at} of {numel} decodes to finite values only"
                        _fail(tested, "what is not finite stays so", case)


def _check_foreign_bytes(tested: Codec) -> None:
    """Bytes that nobody encoded decode to something, or raise CodecError."""
    random = np.random.default_rng(6)
    for numel in (0, 1, 33, 300):
        real = tested.encode(random.standard_normal(numel).astype(np.float32))
        for trial in range(60):
            payload = random.integers(0, 256, real.size, np.uint8)
            if trial % 2 and real.size:
                payload = real.copy()
                payload[random.integers(real.size)] ^= np.uint8(1 << random.integers(8))
            try:
                decoded = tested.decode(payload, numel)
            except CodecError:
                continue
            except Exception as error:
                _fail(tested, "foreign bytes raise nothing but CodecError", repr(error))
            if decoded.dtype != np.float32 or decoded.shape != (numel,):
                _fail(tested, "foreign bytes decode to float32 [numel]", f"{decoded.shape}")
        for wrong in (real[:-1], np.append(real, np.uint8(0))):
            if wrong.size != real.size:
                _check_refused(tested, wrong, numel)


def _check_refused(tested: Codec, wrong: np.ndarray, numel: int) -> None:
    try:
        tested.decode(wrong, numel)
    except CodecError:
        return
    _fail(tested, "a payload of the wrong size raises CodecError", f"{wrong.size} for {numel}")


def _check_tensors(tested: Codec) -> None:
    """Tensors give the bytes and values that arrays give, eagerly and in a graph."""
    if importlib.util.find_spec("tensorflow") is None:
        return
    import tensorflow as tf

    for numel in (0, 1, 1000):

        def run(x: Any, old: Any, numel: int = numel) -> Any:
            encoded = tested.encode(x, seed=5, step=6)
            payload, residual = tested.encode_with_feedback(x, old, seed=5, step=6)
            return encoded, payload, residual, tested.decode(encoded, numel)

        spec = tf.TensorSpec([numel], tf.float32)
        graph = tf.function(run, autograph=False).get_concrete_function(spec, spec)
        shapes = [tensor.shape for tensor in graph.structured_outputs]
        size = tested.payload_size(numel)
        if shapes != [(size,), (size,), (numel,), (numel,)]:
            _fail(tested, "tensors have static shapes", f"they have {shapes} for {numel} elements")
        for name, x in _samples(numel):
            old = np.random.default_rng(7).standard_normal(numel).astype(np.float32)
            arrays = run(x, old.copy())
            for mode, function in (("eagerly", run), ("in a graph", graph)):
                tensors = function(tf.constant(x), tf.constant(old))
                for array, tensor in zip(arrays, tensors, strict=True):
                    if array.tobytes() != tensor.numpy().tobytes():
                        _fail(tested, "tensors give what arrays give", f"{numel} {name}, {mode}")
