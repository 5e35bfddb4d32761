"""Every kernel of every codec, found by the registry, and the check that each is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import gradcomp as gc
from bench.kernels import targets
from bench.kernels.measure import Case
from gradcomp import kernels, reference
from gradcomp.codecs import KernelCodec, registered

Array = np.ndarray[Any, Any]

RNG = (1, 2, 0, 0)
# Codecs with more than one kernel; all others are timed as they are by default.
_VARIANTS = {
    "quantize": (
        targets.INT8,
        targets.INT4,
        "quantize:bits=4,stochastic=false",
        "quantize:bits=2,stochastic=false",
    ),
    "topk": tuple(targets.TOPK.format(density) for density in (0.001, 0.01, 0.1)),
    "fp8": ("fp8:format=e4m3", "fp8:format=e5m2"),
}


@dataclass(frozen=True)
class Kernel:
    """One operation of one codec on `numel` elements."""

    spec: str
    operation: str
    numel: int
    bytes_moved: int
    case: Case

    @property
    def name(self) -> str:
        return self.case.name


def specs() -> list[str]:
    """The codecs that have kernels."""
    return [
        spec
        for name, made in registered().items()
        if issubclass(made, KernelCodec)
        for spec in _VARIANTS.get(name, (name,))
    ]


def draw(numel: int, seed: int = 0) -> Array:
    """Like a gradient: the product of two normals, float32."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(numel, dtype=np.float32)
    x *= random.standard_normal(numel, dtype=np.float32)
    return x


@dataclass(frozen=True)
class Buffers:
    """Arrays of one size, shared by all kernels, since only one runs at a time."""

    gradient: Array
    residual: Array
    scratch: Array

    @classmethod
    def make(cls, numel: int) -> Buffers:
        gradient = draw(numel)
        return cls(gradient, draw(numel, 1) * np.float32(0.1), np.zeros_like(gradient))


def kernels_of(spec: str, buffers: Buffers) -> Iterator[Kernel]:
    """All operations of a codec, on warm buffers and in place, as the native library runs them."""
    codec = gc.codec(spec)
    assert isinstance(codec, KernelCodec)
    native = kernels.load_native()
    numel = buffers.gradient.size
    table = np.array([[0, 0, numel, codec.kept(numel), 0]], np.int64)
    gradients, scratch = [buffers.gradient], [buffers.scratch]
    raw, wire = 4 * numel, codec.payload_size(numel)
    plain = native.Codec(*codec.kernel_params(False))
    fed = native.Codec(*codec.kernel_params(True))
    payload = np.zeros(wire, np.uint8)
    two = np.zeros(2 * wire, np.uint8)
    native.encode(plain, gradients, None, table, RNG, payload)
    two[:wire] = two[wire:] = payload
    out = np.zeros_like(payload)

    def make(operation: str, moved: int, run: Callable[[], object], fresh: bool = False) -> Kernel:
        reset = _refresh(buffers) if fresh else (lambda: None)
        return Kernel(spec, operation, numel, moved, Case(f"{spec} {operation}", run, reset))

    yield make(
        targets.ENCODE,
        raw + wire,
        lambda: native.encode(plain, gradients, None, table, RNG, out),
    )
    yield make(
        targets.FEEDBACK,
        3 * raw + wire,
        lambda: native.encode(fed, gradients, scratch, table, RNG, out),
        fresh=True,
    )
    yield make(
        targets.DECODE, wire + raw, lambda: native.decode(plain, payload, 1, table, 1.0, scratch)
    )
    yield make(
        targets.SUM, 2 * wire + raw, lambda: native.decode(plain, two, 2, table, 1.0, scratch)
    )
    if "two_phase" in codec.routes:
        yield make(
            targets.REDUCE,
            3 * wire + 2 * raw,
            lambda: native.reduce(fed, two, 2, buffers.scratch, table, (*RNG[:3], 1), 1.0, out),
            fresh=True,
        )
    if isinstance(codec, gc.TopK):
        yield from _indices(spec, codec, numel, make)


def _refresh(buffers: Buffers) -> Callable[[], object]:
    return lambda: np.copyto(buffers.scratch, buffers.residual)


def _indices(
    spec: str, codec: gc.TopK, numel: int, make: Callable[..., Kernel]
) -> Iterator[Kernel]:
    """Elias–Fano alone, which is part of top-k's times too."""
    native = kernels.load_native()
    k = codec.kept(numel)
    chosen = np.random.default_rng(2).choice(numel, k, replace=False)
    positions: Array = np.sort(chosen).astype(np.uint32)
    code = np.zeros(reference.elias_fano_encode(positions, numel).size, np.uint8)
    back = np.zeros_like(positions)
    moved = code.size + 4 * k
    yield make(
        targets.INDICES_ENCODE, moved, lambda: native.elias_fano_encode(positions, numel, code)
    )
    native.elias_fano_encode(positions, numel, code)
    yield make(targets.INDICES_DECODE, moved, lambda: native.elias_fano_decode(code, numel, back))


def verify(spec: str, numel: int, threads: int) -> None:
    """Raises AssertionError unless all operations of a codec equal the reference bit for bit."""
    codec = gc.codec(spec)
    assert isinstance(codec, KernelCodec)
    gc.set_num_threads(threads)
    x, old = draw(numel, 3), draw(numel, 4)
    table = np.array([[0, 0, numel, codec.kept(numel), 0]], np.int64)
    for residual in (None, old):
        params = codec.kernel_params(residual is not None)
        before = None if residual is None else [residual.copy()]
        want, want_left = reference.encode(params, [x], before, table, RNG)
        mine = None if residual is None else [residual.copy()]
        got, left = kernels.encode(params, [x], mine, table, RNG)
        _same(got, want, f"{spec}: payload")
        for a, b in zip(left or [], want_left or [], strict=True):
            _same(a, b, f"{spec}: residual")
    plain = codec.kernel_params(False)
    two = np.concatenate([want, want])
    shapes, dtypes = [(numel,)], ["float32"]
    for world, wire in ((1, want), (2, two)):
        decoded = reference.decode(plain, wire, world, table, 0.5, shapes, dtypes)[0][0]
        ours = kernels.decode(plain, wire, world, table, 0.5, shapes, dtypes)[0][0]
        _same(ours, decoded, f"{spec}: decoded")
    if "two_phase" in codec.routes:
        rng = (*RNG[:3], 1)
        fed = codec.kernel_params(True)
        wanted: tuple[Any, ...] = reference.reduce(fed, two, 2, old.copy(), table, rng, 0.5)
        reduced: tuple[Any, ...] = kernels.reduce(fed, two, 2, old.copy(), table, rng, 0.5)
        for a, b in zip(reduced, wanted, strict=True):
            _same(a, b, f"{spec}: reduced")


def check_payload_sizes(spec: str) -> None:
    """Raises AssertionError unless payloads are as long as is said, exactly."""
    codec = gc.codec(spec)
    assert codec is not None
    for numel in (1, 255, 256, 257, 10_000):
        assert codec.encode(draw(numel)).size == codec.payload_size(numel), (spec, numel)


def _same(got: Array, want: Array, what: str) -> None:
    assert got.tobytes() == want.tobytes(), f"{what} differs from the reference"
