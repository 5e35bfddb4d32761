"""The TensorFlow ops equal the oracle byte for byte, eagerly and in graphs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from buckets import ALL_PARAMS, DTYPES, REDUCIBLE, SHAPES, bits_of, name_of, segments_of, values_of

from gradcomp import kernels, reference
from gradcomp.kernels import KernelParams

RNG = (2**40 + 7, 3, 1, 0)

Run = Callable[[Callable[..., Any]], Callable[..., Any]]


def run_eagerly(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@pytest.fixture(params=[run_eagerly, tf.function], ids=["eager", "graph"])
def run(request: pytest.FixtureRequest) -> Run:
    """Wraps a function of tensors; tensors passed as arguments are not constants in the graph."""
    return request.param


def every(all_params: list[KernelParams]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("params", all_params, ids=name_of)


def make_gradients(seed: int = 0) -> list[tf.Tensor]:
    pairs = enumerate(zip(SHAPES, DTYPES, strict=True))
    return [tf.cast(values_of(100 * seed + i, shape), dtype) for i, (shape, dtype) in pairs]


def make_residuals() -> list[tf.Tensor]:
    return [tf.constant(values_of(50 + i, shape)) for i, shape in enumerate(SHAPES)]


def arrays(tensors: list[tf.Tensor]) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in tensors]


def payloads_of(params: KernelParams, world: int, segments: np.ndarray) -> np.ndarray:
    """What `world` ranks send, by the oracle."""
    ranks = [
        reference.encode(params, arrays(make_gradients(r)), None, segments, (7, 0, r, 0))[0]
        for r in range(world)
    ]
    return np.concatenate(ranks)


@every(ALL_PARAMS)
@pytest.mark.parametrize("feedback", [False, True])
def test_encode_equals_the_oracle(params: KernelParams, feedback: bool, run: Run) -> None:
    gradients, residuals = make_gradients(), make_residuals() if feedback else None
    segments = segments_of(params)

    def encode(gradients: Any, residuals: Any) -> Any:
        payload, new = kernels.encode(params, gradients, residuals, segments, RNG)
        assert payload.shape == [reference.payload_size(params, segments)]
        assert [tuple(r.shape) for r in new or []] == (SHAPES if feedback else [])
        return payload, new or []

    payload, new = run(encode)(gradients, residuals)
    want, want_new = reference.encode(
        params, arrays(gradients), arrays(residuals) if residuals else None, segments, RNG
    )
    assert bits_of(payload) == bits_of(want)
    assert [bits_of(r) for r in new] == [bits_of(r) for r in want_new or []]


@every(ALL_PARAMS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_decode_equals_the_oracle(params: KernelParams, world: int, run: Run) -> None:
    segments = segments_of(params)
    payloads = payloads_of(params, world, segments)

    def decode(payloads: Any, scale: Any) -> Any:
        tensors, finite = kernels.decode(params, payloads, world, segments, scale, SHAPES, DTYPES)
        assert [tuple(t.shape) for t in tensors] == SHAPES
        assert [t.dtype.name for t in tensors] == DTYPES
        assert finite.shape == []
        return tensors, finite

    scale = 1 / world
    tensors, finite = run(decode)(tf.constant(payloads), tf.constant(scale))
    want, want_finite = reference.decode(params, payloads, world, segments, scale, SHAPES, DTYPES)
    assert [bits_of(t) for t in tensors] == [bits_of(w) for w in want]
    assert bool(finite) == want_finite


@every(REDUCIBLE)
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("feedback", [False, True])
def test_reduce_equals_the_oracle(
    params: KernelParams, world: int, feedback: bool, run: Run
) -> None:
    chunk = segments_of(params)[4:7]
    size = reference.payload_size(params, chunk)
    payloads = payloads_of(params, world, segments_of(params))[: world * size]
    residual = values_of(9, (int(chunk[:, 2].sum()),)) if feedback else None
    rng = (5, 6, 2, 1)

    def reduce(payloads: Any, residual: Any) -> Any:
        payload, new = kernels.reduce(params, payloads, world, residual, chunk, rng, 1 / world)
        assert payload.shape == [size]
        return payload, new if feedback else []

    old = tf.constant(residual) if feedback else None
    payload, new = run(reduce)(tf.constant(payloads), old)
    want, want_new = reference.reduce(
        params, payloads, world, residual, chunk, rng, np.float32(1 / world)
    )
    assert bits_of(payload) == bits_of(want)
    assert not feedback or bits_of(new) == bits_of(want_new)


@every(ALL_PARAMS)
def test_subnormals_survive_tensorflows_threads(params: KernelParams) -> None:
    """TensorFlow's threads flush subnormal numbers to zero, its own ops' among them."""
    shapes, dtypes = [(64,)] * 8, ["float32"] * 8
    segments = segments_of(params, shapes)
    random = np.random.default_rng(1)
    gradients = [random.uniform(-1e-38, 1e-38, s).astype(np.float32) for s in shapes]
    residuals = [random.uniform(-1e-38, 1e-38, s).astype(np.float32) for s in shapes]

    @tf.function
    def step(gradients: Any, residuals: Any) -> Any:
        # Several ops at once, and not equal ones, so that the pool's threads take part.
        sent = [
            kernels.encode(params, gradients, residuals, segments, (1, i, 0, 0)) for i in range(4)
        ]
        received = [
            kernels.decode(params, payload, 1, segments, 0.5, shapes, dtypes)[0]
            for payload, _ in sent
        ]
        return sent, received, [g * 0.5 for g in gradients]

    tensors = [tf.constant(g) for g in gradients]
    sent, received, flushed = step(tensors, [tf.constant(r) for r in residuals])
    for i, ((payload, new), outputs) in enumerate(zip(sent, received, strict=True)):
        want, want_new = reference.encode(params, gradients, residuals, segments, (1, i, 0, 0))
        assert bits_of(payload) == bits_of(want)
        assert [bits_of(r) for r in new] == [bits_of(r) for r in want_new or []]
        want_outputs, _ = reference.decode(params, want, 1, segments, 0.5, shapes, dtypes)
        assert [bits_of(t) for t in outputs] == [bits_of(w) for w in want_outputs]
    assert all(np.all(np.asarray(f) == 0) for f in flushed), "the trap is gone: TF keeps subnormals"


@every(ALL_PARAMS)
def test_inputs_are_left_as_they_are(params: KernelParams, run: Run) -> None:
    segments = segments_of(params)
    gradients, residuals = make_gradients(), make_residuals()
    before = [bits_of(t) for t in (*gradients, *residuals)]

    def encode(gradients: Any, residuals: Any) -> Any:
        # Temporaries too: the op is the last but one to read them.
        copies = [tf.identity(r) + 0.0 for r in residuals]
        payload, _ = kernels.encode(params, gradients, copies, segments, RNG)
        with tf.control_dependencies([payload]):
            return payload, [tf.identity(c) for c in copies], [r + 0.0 for r in residuals]

    payload, copies, same = run(encode)(gradients, residuals)
    sent = bits_of(payload)
    assert [bits_of(c) for c in copies] == [bits_of(s) for s in same]
    run(lambda p: kernels.decode(params, p, 1, segments, 2.0, SHAPES, DTYPES))(payload)
    assert bits_of(payload) == sent
    assert [bits_of(t) for t in (*gradients, *residuals)] == before


def test_a_bucket_of_300_tensors_is_one_op_a_phase() -> None:
    shapes = [(1 + i % 5, 3) for i in range(300)]
    params = KernelParams("quantize", 4, 32)
    segments = segments_of(params, shapes)
    dtypes = ["float32"] * 300

    @tf.function
    def exchange(gradients: Any, residuals: Any) -> Any:
        payload, new = kernels.encode(params, gradients, residuals, segments, RNG)
        reduced, _ = kernels.reduce(params, payload, 1, None, segments, RNG, 1.0)
        return kernels.decode(params, reduced, 1, segments, 1.0, shapes, dtypes), new

    ones = [tf.ones(shape) for shape in shapes]
    graph = exchange.get_concrete_function(ones, ones).graph
    types = [op.type for op in graph.get_operations()]
    passive = {"Placeholder", "Const", "Identity"}
    assert sorted(set(types) - passive) == ["GradcompDecode", "GradcompEncode", "GradcompReduce"]
    assert len([t for t in types if t not in passive]) == 3


@pytest.mark.parametrize("kind", [tf.Variable, tf.constant])
def test_random_key_and_scale_may_be_tensors(kind: Any, run: Run) -> None:
    params = KernelParams("quantize", 2, 32, stochastic=True)
    segments = segments_of(params)
    gradients = make_gradients()
    words, scale = [kind(w, dtype=tf.int64) for w in (-5, 8, 3, 1)], kind(0.25)

    def exchange(gradients: Any, seed: Any, step: Any, rank: Any, phase: Any, scale: Any) -> Any:
        rng = (seed, step, rank, phase)
        payload, _ = kernels.encode(params, gradients, None, segments, rng)
        return payload, kernels.decode(params, payload, 1, segments, scale, SHAPES, DTYPES)[0]

    payload, tensors = run(exchange)(gradients, *words, scale)
    want, _ = reference.encode(params, arrays(gradients), None, segments, (2**64 - 5, 8, 3, 1))
    want_out, _ = reference.decode(params, want, 1, segments, 0.25, SHAPES, DTYPES)
    assert bits_of(payload) == bits_of(want)
    assert [bits_of(t) for t in tensors] == [bits_of(w) for w in want_out]


def test_variables_are_taken_for_tensors() -> None:
    params = KernelParams("float16")
    values, residual = values_of(1, (5,)), values_of(2, (5,))
    row = np.array([[0, 0, 5, 0, 0]], np.int64)
    old = tf.Variable(residual)
    payload, new = kernels.encode(params, [tf.Variable(values)], [old], row, RNG)
    want, want_new = reference.encode(params, [values], [residual], row, RNG)
    assert new is not None and want_new is not None
    assert (bits_of(payload), bits_of(new[0])) == (bits_of(want), bits_of(want_new[0]))
    assert bits_of(old) == bits_of(residual)


def test_a_bucket_may_hold_one_scalar(run: Run) -> None:
    params, row = KernelParams("float32"), np.array([[0, 0, 1, 0, 0]], np.int64)

    def exchange(x: Any) -> Any:
        payload, _ = kernels.encode(params, [x], None, row, RNG)
        return kernels.decode(params, payload, 1, row, 1.0, [()], ["float32"])[0][0]

    assert run(exchange)(tf.constant(2.5)).numpy() == 2.5
