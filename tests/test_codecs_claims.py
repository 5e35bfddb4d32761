"""Every codec keeps its claims, and `check_codec` notices each claim that is not kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import gradcomp as gc
from gradcomp.codecs import ArrayCodec, RandomBits, registered
from gradcomp.testing import check_codec

SPECS = [
    *registered(),
    "quantize:bits=4,block_size=64,stochastic=true",
    "quantize:bits=2,block_size=32,stochastic=false",
    "quantize:bits=2",
    "topk:density=0.5,values=identity",
    "topk:density=0.1,values=(quantize:bits=4)",
    "topk:density=0.02,values=(quantize:bits=8,block_size=32,stochastic=false)",
    "topk:density=1.0,values=bf16",
    "fp8:format=e5m2,block_size=32",
    "sign:block_size=64",
    "topk:density=0.1,values=(fp8:format=e5m2)",
    "topk:density=0.5,values=(sign:block_size=32)",
]


@pytest.mark.parametrize("spec", SPECS)
def test_codec_keeps_its_claims(spec: str) -> None:
    codec = gc.codec(spec)
    assert codec is not None
    check_codec(codec)


@dataclass(frozen=True)
class Steps(ArrayCodec):
    """Rounds at random to multiples of 1/8 of the largest magnitude, and keeps all its claims."""

    option: int = 0

    name = "steps"
    routes = ("dense", "all_gather", "two_phase")

    def payload_size(self, numel: int) -> int:
        return 4 * numel

    def unbiased(self, feedback: bool = False) -> bool:
        return True

    def error_bound(self, x: np.ndarray) -> np.ndarray:
        return np.full(x.shape, np.abs(x).max(initial=0) / 7, np.float32)

    def rounding(self, random: RandomBits) -> Any:
        return random.uniform()

    def encode_array(self, x: np.ndarray, random: RandomBits) -> np.ndarray:
        step = np.abs(x).max(initial=0) / np.float32(8)
        if step < 1e-30 or not np.isfinite(step):
            return x.view(np.uint8).copy()
        q = np.floor(x / step + self.rounding(random))
        return (q * step).view(np.uint8)

    def decode_array(self, payload: np.ndarray, numel: int) -> np.ndarray:
        return payload.view(np.float32).copy()


def test_the_codec_that_is_broken_below_is_whole() -> None:
    check_codec(Steps())


def without_nan(self: Steps, x: np.ndarray, random: RandomBits) -> np.ndarray:
    return Steps.encode_array(self, np.nan_to_num(x, posinf=1, neginf=-1), random)


def one_byte_more(self: Steps, x: np.ndarray, random: RandomBits) -> np.ndarray:
    return np.append(Steps.encode_array(self, x, random), np.uint8(0))


def with_a_mood(self: Steps, x: np.ndarray, random: RandomBits) -> np.ndarray:
    return Steps.encode_array(self, x + np.float32(next(moods) % 2), random)


moods = itertools.count()


def half_off(self: Steps, x: np.ndarray, random: RandomBits) -> np.ndarray:
    return (x / np.float32(2)).view(np.uint8)


def as_doubles(self: Steps, payload: np.ndarray, numel: int) -> np.ndarray:
    return payload.view(np.float32).astype(np.float64)


def greedy(self: Steps, payload: np.ndarray, numel: int) -> np.ndarray:
    values = Steps.decode_array(self, payload, numel)
    if (values.view(np.uint32)[np.isnan(values)] != 0x7FC00000).any():
        raise IndexError("out of the table")
    return values


def spoiling(self: Steps, x: Any, **options: Any) -> Any:
    payload = Steps.encode(self, x, **options)
    if isinstance(x, np.ndarray) and x.dtype == np.float32 and x.flags.writeable:
        x += 1
    return payload


def padded(self: Steps, x: Any, **options: Any) -> Any:
    return np.append(Steps.encode(self, x, **options), np.uint8(0))


def in_doubles(self: Steps, payload: Any, numel: int) -> Any:
    return Steps.decode(self, payload, numel).astype(np.float64)


def halves_differ(self: Steps, x: Any, **options: Any) -> Any:
    return Steps.encode(self, x * (2 if x.dtype == np.float16 else 1), **options)


def tensors_differ(self: Steps, x: Any, *, seed: Any = 0, step: Any = 0) -> Any:
    return Steps.encode(self, x, seed=seed + tf.is_tensor(x), step=step)


def of_unknown_shape(self: Steps, x: Any, **options: Any) -> Any:
    payload = Steps.encode(self, x, **options)
    return tf.numpy_function(np.copy, [payload], tf.uint8) if tf.is_tensor(x) else payload


def forgetful(self: Steps, gradients: Any, residuals: Any, segments: Any, rng: Any) -> Any:
    payload, new = Steps.encode_bucket(self, gradients, residuals, segments, rng)
    for residual in new or []:
        residual *= 0
    return payload, new


def copying(self: Steps, x: Any, residual: Any, **options: Any) -> Any:
    return Steps.encode_with_feedback(self, x, np.copy(residual), **options)


def unscaled(self: Steps, payloads: Any, world: Any, segments: Any, scale: Any, *rest: Any) -> Any:
    return Steps.decode_bucket(self, payloads, world, segments, 1.0, *rest)


def forgetful_midway(self: Steps, payloads: Any, world: Any, residual: Any, *rest: Any) -> Any:
    payload, _ = Steps.reduce_bucket(self, payloads, world, residual, *rest)
    residual *= 0
    return payload, residual


def trusting(self: Steps, payload: Any, numel: int) -> Any:
    if isinstance(payload, np.ndarray):
        payload = np.resize(payload, self.payload_size(numel))
    return Steps.decode(self, payload, numel)


BROKEN: list[tuple[str, str, Callable[..., Any]]] = [
    ("equal options are equal", "__eq__", lambda self, other: self is other),
    ("its spec stands for it", "spec", property(lambda self: "steps")),
    ("its config stands for it", "get_config", lambda self: {"name": "steps"}),
    ("immutable", "__setattr__", object.__setattr__),
    (r"encode_array returned uint8 \[4\]", "payload_size", lambda self, n: 4 * n + (n > 0)),
    (r"payload_size\(0\) is 0", "encode", padded),
    (r"decode gives float32", "decode", in_doubles),
    (r"encode_array returned uint8 \[1\]", "encode_array", one_byte_more),
    (r"decode_array returned float64", "decode_array", as_doubles),
    ("leaves its input alone", "encode", spoiling),
    ("equal seeds give equal bytes", "encode_array", with_a_mood),
    ("float16 is widened", "encode", halves_differ),
    ("within error_bound", "error_bound", lambda self, x: np.abs(x) / 100),
    ("within error_bound", "encode_array", half_off),
    (r"unbiased \(feedback=False\)", "rounding", lambda self, random: np.float32(0.5)),
    (r"unbiased \(feedback=False\)", "rounding", lambda self, random: random.uniform() * 0.97),
    (r"unbiased \(feedback=False\)", "rounding", lambda self, random: random.uniform() / 4 + 0.375),
    ("corrected = decode", "encode_bucket", forgetful),
    ("updated in place", "encode_with_feedback", copying),
    ("summed in rank order", "decode_bucket", unscaled),
    ("second phase keeps", "reduce_bucket", forgetful_midway),
    ("not finite stays so", "encode_array", without_nan),
    ("nothing but CodecError.*out of the table", "decode_array", greedy),
    ("wrong size raises CodecError", "decode", trusting),
    ("give what arrays give", "encode", tensors_differ),
    ("static shapes", "encode", of_unknown_shape),
]


def broken(method: str, function: Callable[..., Any]) -> Steps:
    name = f"broken_{next(moods)}"
    members = {"name": name, "__module__": __name__, "__hash__": Steps.__hash__, method: function}
    return type("Broken", (Steps,), members)()


@pytest.mark.parametrize(
    ("claim", "method", "function"), BROKEN, ids=[f"{b[1]}-{i}" for i, b in enumerate(BROKEN)]
)
def test_a_claim_that_is_not_kept_is_named(
    claim: str, method: str, function: Callable[..., Any]
) -> None:
    codec = broken(method, function)
    with pytest.raises(AssertionError, match=claim) as raised:
        check_codec(codec)
    assert str(raised.value).startswith(repr(codec))
