"""Every kernel of every codec on the device, and the comparison with the CPU's bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import gradcomp as gc
from bench.gpu.device import Array, Device
from gradcomp import cuda, kernels
from gradcomp.codecs import KernelCodec

RNG = (1, 2, 0, 0)
CODES = {"masks": 1, "4-bit codes": 4}
"""What activations keep of masks and of positions in small windows: bits of a code."""
OPERATIONS = ("encode", "encode, feedback", "decode", "decode and sum 2")


@dataclass(frozen=True)
class Kernel:
    """One operation of one codec: `run` puts it on the stream."""

    spec: str
    operation: str
    bytes_moved: int
    run: Callable[[], object]

    @property
    def name(self) -> str:
        return f"{self.spec} {self.operation}"


def draw(numel: int) -> Array:
    """Like a gradient: products of two normals, float32, from one draw of each."""
    x = np.random.default_rng(numel).standard_normal(numel, dtype=np.float32)
    return x * np.roll(x, 1)


class Buffers:
    """Arrays of one size and their copies on the device, shared by all kernels."""

    def __init__(self, device: Device, numel: int, dtype: str = "float32") -> None:
        self.device = device
        drawn = draw(numel)
        self.residual = drawn[::-1] * np.float32(0.1)
        self.gradient = drawn if dtype == "float32" else drawn.astype(_dtype(dtype))
        self.dtype = dtype
        self.on_device = device.put(self.gradient)
        self.residual_on_device = device.put(self.residual)
        self.result = device.empty(numel, "float32")
        self.output = self.result if dtype == "float32" else device.empty(numel, dtype)

    @property
    def numel(self) -> int:
        return self.gradient.size

    def copy_bytes(self) -> int:
        return 8 * self.numel

    def copy(self) -> None:
        """The yardstick: a copy within the device of as many bytes as the residual has."""
        self.device.copy(self.result, self.residual_on_device)


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def kernels_of(spec: str, buffers: Buffers) -> Iterator[Kernel]:
    """All operations of a codec or of codes, each verified before it is yielded.

    Raises:
      AssertionError: bytes differ from the CPU's; says which.
    """
    return _of_codes(spec, buffers) if spec in CODES else _of_codec(spec, buffers)


def _of_codes(name: str, buffers: Buffers) -> Iterator[Kernel]:
    device, bits = buffers.device, CODES[name]
    codes = buffers.gradient.view(np.uint8)[: buffers.numel] % (1 << bits)
    want = np.empty(-(-codes.size * bits // 8), np.uint8)
    kernels.load_native().pack_bits(codes, bits, want)
    given, again = device.put(codes), device.empty(codes.size, "uint8")
    packed = device.empty(want.size, "uint8")
    for operation, run, result, wanted in (
        ("pack", lambda: cuda.pack_bits(given, bits, packed=packed), packed, want),
        ("unpack", lambda: cuda.unpack_bits(packed, bits, again), again, codes),
    ):
        run()
        _same(device.get(result), wanted, f"{name} {operation}: the {operation}ed codes")
        yield Kernel(name, operation, codes.size + want.size, run)


def _of_codec(spec: str, buffers: Buffers) -> Iterator[Kernel]:
    codec = gc.codec(spec)
    assert isinstance(codec, KernelCodec)
    device, numel = buffers.device, buffers.numel
    raw = buffers.gradient.nbytes
    wire = codec.payload_size(numel)
    scratch = device.empty(
        max(cuda.encode_workspace(codec, [numel]), cuda.decode_workspace(codec, [numel], 2)),
        "uint8",
    )
    two = device.empty(2 * wire, "uint8")
    payload = two[:wire]

    def encode(**residuals: Any) -> None:
        cuda.encode(
            codec, [buffers.on_device], rng=RNG, payload=payload, workspace=scratch, **residuals
        )

    def feedback() -> None:
        encode(residuals=[buffers.residual_on_device], new_residuals=[buffers.result])

    def decode(world: int) -> cuda.Report:
        return cuda.decode(
            codec, two[: world * wire], [buffers.output], world=world, workspace=scratch
        )

    for run, old in ((encode, None), (feedback, buffers.residual)):
        name = f"{spec} {OPERATIONS[0 if old is None else 1]}"
        want, left = _encode(codec, buffers.gradient, old)
        run()
        _same(device.get(payload), want, f"{name}: the payload")
        moved = raw + wire
        if left is not None:
            _same(device.get(buffers.result), left, f"{name}: the residual")
            moved += 8 * numel
        yield Kernel(spec, name.removeprefix(f"{spec} "), moved, run)
    # What is left in the payload is the one with feedback.
    device.copy(two[wire:], payload)
    for world in (1, 2):
        name = f"{spec} {OPERATIONS[1 + world]}"
        wanted, finite = _decode(codec, np.tile(want, world), world, buffers)
        assert decode(world).wait() == finite, f"{name}: whether all is finite is said wrongly"
        _same(device.get(buffers.output), wanted, f"{name}: the output")
        run_decode = functools.partial(decode, world)
        yield Kernel(spec, OPERATIONS[1 + world], raw + world * wire, run_decode)


def _encode(codec: KernelCodec, x: Array, residual: Array | None) -> tuple[Array, Array | None]:
    table = _table(codec, x.size)
    kept = None if residual is None else [residual.copy()]
    params = codec.kernel_params(residual is not None)
    payload, left = kernels.encode(params, [x], kept, table, RNG)
    return payload, None if left is None else left[0]


def _decode(
    codec: KernelCodec, payloads: Array, world: int, buffers: Buffers
) -> tuple[Array, bool]:
    table = _table(codec, buffers.numel)
    params, shapes = codec.kernel_params(False), [(buffers.numel,)]
    outputs, finite = kernels.decode(params, payloads, world, table, 1.0, shapes, [buffers.dtype])
    return outputs[0], finite


def _table(codec: KernelCodec, numel: int) -> Array:
    return np.array([[0, 0, numel, codec.kept(numel), 0]], np.int64)


def _same(got: Array, want: Array, what: str) -> None:
    a, b = got.reshape(-1).view(np.uint8), want.reshape(-1).view(np.uint8)
    if not np.array_equal(a, b):
        at = int(np.argmax(a != b)) if a.size == b.size else -1
        raise AssertionError(
            f"{what} differs from the CPU's"
            + (
                f", first at byte {at} of {a.size}"
                if at >= 0
                else f": {a.size} bytes, not {b.size}"
            )
        )
