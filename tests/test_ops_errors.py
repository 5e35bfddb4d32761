"""What the TensorFlow ops refuse: always by an error that names the value."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from buckets import ALL_PARAMS, bits_of, name_of

from gradcomp import CodecError, kernels, reference
from gradcomp.kernels import KernelParams

FLOAT16 = KernelParams("float16")
QUANTIZE = KernelParams("quantize", 8, 32)
TOPK = KernelParams("topk", values="float16")
RNG = (1, 2, 0, 0)


def rows(*table: tuple[int, int, int, int, int]) -> np.ndarray:
    return np.array(table, np.int64)


GOOD = rows((0, 0, 40, 0, 0), (1, 0, 3, 0, 1))


def encode(
    params: KernelParams = FLOAT16, segments: Any = GOOD, rng: Any = RNG, **changes: Any
) -> Any:
    gradients = changes.get("gradients", [tf.ones([40]), tf.ones([3])])
    return kernels.encode(params, gradients, changes.get("residuals"), segments, rng)


def decode(params: KernelParams, payload: bytes, row: tuple[int, ...], world: int = 1) -> Any:
    wire = tf.constant(np.frombuffer(payload, np.uint8))
    return kernels.decode(params, wire, world, np.array([row]), 1.0, [(row[2],)], ["float32"])


@pytest.mark.parametrize(
    ("segments", "named"),
    [
        (GOOD[:, :4], r"segments has shape \[2, 4\]"),
        (GOOD[0], r"segments has shape \[5\]"),
        (GOOD[:1], "row 1 of segments"),
        (GOOD[::-1].copy(), "row 1 of segments.*tensor 0, start 0, length 40, kept 0, stream 0"),
        (rows((0, 0, 39, 0, 0), (1, 0, 3, 0, 1)), "row 1 of segments"),
        (rows((0, 0, 40, 0, 0), (1, 0, 4, 0, 1)), "row 1 of segments.*length 4"),
        (rows((0, 0, 40, 0, 0), (2, 0, 3, 0, 1)), "row 1 of segments.*tensor 2"),
        (rows((0, 0, 40, 0, 0), (1, 1, 3, 0, 1)), "row 1 of segments.*start 1"),
        (rows((0, 0, -40, 0, 0), (1, 0, 83, 0, 1)), "row 0 of segments.*length -40"),
        (rows((0, 0, 40, 7, 0), (1, 0, 3, 0, 1)), "row 0 of segments.*kept 7"),
        (rows((0, 0, 40, 0, 2**40), (1, 0, 3, 0, 1)), "row 0 of segments.*stream 1099511627776"),
        (rows((0, 0, 2**62, 0, 0), (1, 0, 2**62, 0, 1)), "row 0 of segments"),
        (rows((0, 0, 2**40, 0, 0), (1, 0, 43 - 2**40, 0, 1)), "row [01] of segments"),
        (np.empty((0, 5), np.int64), "row 0 of segments"),
    ],
)
def test_segment_tables(segments: np.ndarray, named: str) -> None:
    with pytest.raises(CodecError, match=named):
        encode(segments=segments)


def test_segments_of_blocks_start_at_a_block() -> None:
    with pytest.raises(CodecError, match=r"row 1 of segments.*start 31"):
        encode(QUANTIZE, rows((0, 0, 31, 0, 0), (0, 31, 9, 0, 0), (1, 0, 3, 0, 1)))


@pytest.mark.parametrize("kept", [-1, 41])
def test_kept_must_fit(kept: int) -> None:
    with pytest.raises(CodecError, match=f"row 0 of segments.*kept {kept}"):
        encode(TOPK, rows((0, 0, 40, kept, 0), (1, 0, 3, 1, 1)))


@pytest.mark.parametrize(
    ("rng", "named"),
    [((1, 2, -1, 0), "-1"), ((1, 2, 2**31, 0), "2147483648"), ((1, 2, 0, 2), "phase is 2")],
)
def test_random_keys(rng: tuple[int, ...], named: str) -> None:
    with pytest.raises(CodecError, match=named):
        encode(rng=rng)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"gradients": [tf.ones([40], tf.float64), tf.ones([3])]}, "gradient 0 is float64"),
        ({"gradients": [tf.ones([40]), tf.ones([3], tf.int32)]}, "gradient 1 is int32"),
        ({"residuals": [tf.ones([40]), tf.ones([3], tf.float16)]}, "residual 1 is float16"),
        ({"residuals": [tf.ones([40])]}, "1 residuals for 2 gradients"),
        ({"residuals": [tf.ones([40]), tf.ones([4])]}, r"residual 1 has shape \[4\]"),
        ({"gradients": [tf.ones([40]), object()]}, "gradient 1 is no tensor"),
        ({"params": KernelParams("float8")}, "float8"),
        ({"params": KernelParams("quantize", 3, 32)}, "bits.*3"),
        ({"params": KernelParams("quantize", 4, 33)}, "block_size.*33"),
        ({"params": KernelParams("topk", values="topk")}, "topk"),
    ],
)
def test_other_arguments(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CodecError, match=named):
        encode(**changes)


@pytest.mark.parametrize(
    ("params", "payload", "row", "world"),
    [
        (FLOAT16, bytes(5), (0, 0, 3, 0, 0), 1),
        (FLOAT16, bytes(6), (0, 0, 3, 0, 0), 2),
        (FLOAT16, b"", (0, 0, 3, 0, 0), 1),
        (QUANTIZE, bytes(7 + 4 + 1), (0, 0, 7, 0, 0), 1),
        (TOPK, bytes(3), (0, 0, 4, 1, 0), 1),
    ],
)
def test_payloads_of_the_wrong_size(
    params: KernelParams, payload: bytes, row: tuple[int, ...], world: int
) -> None:
    want = world * kernels.payload_size(params, [row])
    with pytest.raises(CodecError, match=rf"{len(payload)}\b.*\b{want}\b"):
        decode(params, payload, row, world)


def test_malformed_indices() -> None:
    size = kernels.payload_size(TOPK, [(0, 0, 4, 1, 0)])
    with pytest.raises(CodecError, match="segment 0"):
        decode(TOPK, b"\xff" * size, (0, 0, 4, 1, 0))


@pytest.mark.parametrize("params", ALL_PARAMS, ids=name_of)
def test_any_bytes_are_taken_or_refused_as_the_oracle_does(params: KernelParams) -> None:
    row = rows((0, 0, 70, 5 if params.family == "topk" else 0, 0))
    random = np.random.default_rng(0)
    size = kernels.payload_size(params, row)
    for fill in range(20):
        wire = random.choice([0, 1, 8, 128, 255, fill], size).astype(np.uint8)
        arguments = (1, row, 1.0, [(70,)], ["float32"])
        try:
            want = reference.decode(params, wire, *arguments)
        except ValueError:
            with pytest.raises(CodecError, match="segment 0"):
                kernels.decode(params, tf.constant(wire), *arguments)
            continue
        tensors, finite = kernels.decode(params, tf.constant(wire), *arguments)
        assert (bits_of(tensors[0]), bool(finite)) == (bits_of(want[0][0]), want[1])


def test_decode_checks_what_it_is_asked_for() -> None:
    wire = tf.zeros([6], tf.uint8)
    with pytest.raises(CodecError, match="float64"):
        kernels.decode(FLOAT16, wire, 1, GOOD, 1.0, [(3,)], ["float64"])
    with pytest.raises(CodecError, match=r"payloads is int32, not uint8"):
        kernels.decode(FLOAT16, tf.zeros([6], tf.int32), 1, GOOD, 1.0, [(3,)], ["float32"])
    with pytest.raises(CodecError, match="row 1 of segments"):
        kernels.decode(FLOAT16, wire, 1, rows((0, 0, 3, 0, 0)), 1.0, [(4,)], ["float32"])
    with pytest.raises(CodecError, match=r"scale has shape \[2\]"):
        kernels.decode(FLOAT16, wire, 1, rows((0, 0, 3, 0, 0)), [1, 2], [(3,)], ["float32"])


def test_reduce() -> None:
    wire, chunk = tf.zeros([6], tf.uint8), rows((0, 0, 3, 0, 0))
    with pytest.raises(CodecError, match="topk has no reduce"):
        kernels.reduce(TOPK, wire, 1, None, rows((0, 0, 3, 1, 0)), RNG, 1.0)
    with pytest.raises(CodecError, match=r"\b6\b.*\b12\b"):
        kernels.reduce(FLOAT16, wire, 2, None, chunk, RNG, 1.0)
    with pytest.raises(CodecError, match=r"\b4\b.*\b3\b"):
        kernels.reduce(FLOAT16, wire, 1, tf.zeros([4]), chunk, RNG, 1.0)
    with pytest.raises(CodecError, match="residual is float16"):
        kernels.reduce(FLOAT16, wire, 1, tf.zeros([3], tf.float16), chunk, RNG, 1.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"family": "zip"}, "zip"),
        ({"ranks": [1, 1]}, "2 ranks for 1 tensors"),
        ({"ranks": [2]}, r"dims has shape \[1\], not \[2\]"),
        ({"ranks": [-1]}, r"-1 is not in \[0, 254\]"),
        ({"ranks": [255], "dims": [1] * 255}, r"255 is not in \[0, 254\]"),
        ({"dims": [3, 1]}, r"dims has shape \[2\], not \[1\]"),
        ({"dims": [[3]]}, r"dims has shape \[1, 1\], not \[1\]"),
        ({"dims": [-3]}, "-3 is negative"),
        ({"ranks": [2], "dims": [2**40, 2**40]}, "1099511627776 is negative or makes"),
        ({"world": 0}, "0"),
        ({"segments": tf.zeros([1, 5, 1], tf.int64)}, r"\[1, 5, 1\]"),
    ],
)
def test_attributes(changes: dict[str, Any], named: str) -> None:
    attributes = {"family": "float32", "T": [tf.float32], "world": 1, "ranks": [1]}
    inputs = {
        "payloads": tf.zeros([12], tf.uint8),
        "segments": rows((0, 0, 3, 0, 0)),
        "scale": 1.0,
        "dims": [3],
    }
    arguments = attributes | inputs | changes
    with pytest.raises(tf.errors.InvalidArgumentError, match=named):
        kernels.load_ops().gradcomp_decode(**arguments)


def test_graphs_fail_when_they_run() -> None:
    @tf.function
    def run(payload: Any) -> Any:
        return kernels.decode(TOPK, payload, 1, rows((0, 0, 4, 1, 0)), 1.0, [(4,)], ["float32"])[0]

    size = kernels.payload_size(TOPK, [(0, 0, 4, 1, 0)])
    run.get_concrete_function(tf.TensorSpec([None], tf.uint8))
    with pytest.raises(tf.errors.InvalidArgumentError, match="segment 0"):
        run(tf.fill([size], tf.constant(255, tf.uint8)))


def feedback(x: Any) -> Any:
    return kernels.encode(FLOAT16, [x], [tf.zeros([3])], rows((0, 0, 3, 0, 0)), RNG)[1]


@pytest.mark.parametrize("run", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_there_is_no_gradient(run: Callable[..., Any]) -> None:
    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            new = feedback(x)
        return tape.gradient(new, x)

    with pytest.raises(CodecError, match=r"GradcompEncode has no gradient.*stop_gradient"):
        run(gradient)(tf.ones([3]))


def test_unknown_static_shapes() -> None:
    def run(x: Any) -> Any:
        return feedback(x)

    vector = tf.function(run, input_signature=[tf.TensorSpec([None], tf.float32, "grads")])
    with pytest.raises(CodecError, match=r"gradient 0 \(grads.*\(None,\).*tf.ensure_shape"):
        vector(tf.ones([3]))
    anything = tf.function(run, input_signature=[tf.TensorSpec(None, tf.float32, "grads")])
    with pytest.raises(CodecError, match=r"gradient 0 \(grads.*<unknown>.*tf.ensure_shape"):
        anything(tf.ones([3]))
    known = tf.function(
        lambda x: feedback(tf.ensure_shape(x, [3])),
        input_signature=[tf.TensorSpec([None], tf.float32, "grads")],
    )
    assert known(tf.ones([3]))[0].shape == [3]
