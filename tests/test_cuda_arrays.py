"""gradcomp.cuda gives the CPU kernels' bytes, here by the emulated kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_gpu import DLPack, Heap, Interface, devices, gpu, launched
from kernel_cases import assert_same, numbers

import gradcomp as gc
from bench.kernels.cases import specs
from gradcomp import cuda, kernels, reference
from gradcomp.codecs import KernelCodec
from gradcomp.cuda.native import BUILD

__all__ = ["gpu"]

RNG = (7, 3, 1, 0)
SIZES, DTYPES = ((3, 500), (0,), (1031,)), ("float32", "float16", "bfloat16")


def table_of(codec: KernelCodec) -> np.ndarray:
    numels = [int(np.prod(shape)) for shape in SIZES]
    return np.array([(t, 0, n, codec.kept(n), t) for t, n in enumerate(numels)], np.int64)


def codec_of(spec: str) -> KernelCodec:
    codec = gc.codec(spec)
    assert isinstance(codec, KernelCodec)
    return codec


@pytest.mark.parametrize("spec", specs())
def test_bytes_are_the_cpu_kernels(gpu: Heap, spec: str) -> None:
    codec = codec_of(spec)
    table = table_of(codec)
    made = [
        numbers("special", int(np.prod(shape)), i, dtype).reshape(shape)
        for i, (shape, dtype) in enumerate(zip(SIZES, DTYPES, strict=True))
    ]
    old = [numbers("normal", x.size, 9).reshape(x.shape) for x in made]
    payloads = []
    for feedback in (False, True):
        params = codec.kernel_params(feedback)
        kept = [r.copy() for r in old] if feedback else None
        want, left = kernels.encode(params, made, kept, table, RNG)
        gradients = [gpu.put(x) for x in made]
        residuals, new = [gpu.put(r) for r in old], [gpu.empty(r.shape, r.dtype) for r in old]
        payload = Interface(gpu.empty(want.size, np.uint8, misalignment=3))
        workspace = Interface(gpu.empty(cuda.encode_workspace(spec, [x.size for x in made]), "u1"))
        given: dict[str, Any] = {"payload": payload, "workspace": workspace, "stream": 5}
        if feedback:
            given |= {"residuals": list(map(Interface, residuals))}
            given |= {"new_residuals": list(map(DLPack, new))}
        got = cuda.encode(codec, list(map(DLPack, gradients)), rng=RNG, **given)
        assert got is payload
        assert_same(payload.array, want, "payload")
        for array, wanted in zip(new, left or [], strict=feedback):
            assert_same(array, wanted, "residual")
        for array, wanted in zip(residuals, old, strict=True):
            assert_same(array, wanted, "the old residual")
        if feedback:
            del given["new_residuals"]
            cuda.encode(spec, list(map(DLPack, gradients)), rng=RNG, **given)
            assert left is not None
            for array, wanted in zip(residuals, left, strict=True):
                assert_same(array, wanted, "residual in place")
        payloads.append(want)

    wire = np.concatenate([*payloads, payloads[0]])
    params = codec.kernel_params(False)
    wanted, finite = kernels.decode(params, wire, 3, table, 0.25, SIZES, DTYPES)
    outputs = [gpu.empty(x.shape, x.dtype) for x in made]
    size = cuda.decode_workspace(codec, [x.size for x in made], world=3)
    report = cuda.decode(
        *(codec, Interface(gpu.put(wire)), list(map(DLPack, outputs))),
        **{"world": 3, "scale": 0.25, "stream": 0},
        workspace=DLPack(gpu.empty(size, np.uint8)),
    )
    assert report.wait() == finite
    for output, one in zip(outputs, wanted, strict=True):
        assert_same(output, one, "output")


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_codes_are_packed_as_by_the_cpu(gpu: Heap, bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, 8999, np.uint8)
    want = reference.pack_bits(codes, bits)
    for wrap in (Interface, DLPack):
        packed = wrap(gpu.empty(want.size, np.uint8, misalignment=3))
        assert cuda.pack_bits(wrap(gpu.put(codes)), bits, packed=packed, stream=5) is packed
        assert launched()[0] == 5
        assert_same(packed.array, want, "packed")
        again = wrap(gpu.empty(codes.shape, np.uint8))
        cuda.unpack_bits(packed, bits, again, stream=6)
        assert launched()[0] == 6
        assert_same(again.array, codes, "codes")


def test_masks_are_bool(gpu: Heap) -> None:
    mask = np.random.default_rng(0).integers(0, 2, (3, 7)) == 1
    for wrap in (Interface, DLPack):
        packed, again = wrap(gpu.empty(3, np.uint8)), wrap(gpu.empty(mask.shape, np.bool_))
        cuda.pack_bits(wrap(gpu.put(mask)), 1, packed=packed, stream=0)
        assert_same(packed.array, np.packbits(mask.reshape(-1), bitorder="little"), "packed")
        cuda.unpack_bits(packed, 1, again, stream=0)
        np.testing.assert_array_equal(again.array, mask)


def encode_fp16(gpu: Heap, **given: Any) -> np.ndarray:
    x = gpu.put(np.arange(100, dtype=np.float32))
    payload = gpu.empty(200, np.uint8)
    cuda.encode("fp16", [Interface(x)], payload=Interface(payload), **given)
    return payload


def test_segments_of_the_caller(gpu: Heap) -> None:
    x = numbers("normal", 640)
    table = [[0, 0, 256, 0, 4], [0, 256, 384, 0, 5]]
    codec = codec_of("quantize:bits=4,stochastic=true")
    want, _ = kernels.encode(codec.kernel_params(False), [x], None, table, RNG)
    payload = gpu.empty(want.size, np.uint8)
    workspace = Interface(gpu.empty(cuda.encode_workspace(codec, [640], table), np.uint8))
    cuda.encode(
        codec,
        [Interface(gpu.put(x))],
        **{"segments": table, "rng": RNG, "stream": 0},
        payload=Interface(payload),
        workspace=workspace,
    )
    assert_same(payload, want, "payload")


class Stream:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__ |= attributes


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 44


def test_streams(gpu: Heap) -> None:
    for stream, handle in (
        *((0, 0), (1, 0), (2, 2), (1 << 40, 1 << 40)),
        *((Stream(ptr=11), 11), (Stream(cuda_stream=12), 12), (Protocol(), 44)),
    ):
        encode_fp16(gpu, stream=stream)
        assert launched() == (handle, 0, 0)
    for stream in (-1, True, "0", 1.5, Stream(ptr="x")):
        with pytest.raises(gc.CodecError, match=r"stream is .*pass a cudaStream_t"):
            encode_fp16(gpu, stream=stream)
    with pytest.raises(gc.CodecError, match=r"stream is None.*pass the cudaStream_t"):
        encode_fp16(gpu)


def test_the_arrays_device_is_current_while_kernels_are_launched(gpu: Heap) -> None:
    x, payload = gpu.empty(10, np.float32, 1), gpu.empty(20, np.uint8, 1)
    with devices(2):
        for wrap in (Interface, lambda array: DLPack(array, (2, 1))):
            encode_fp16(gpu, stream=0)
            cuda.encode("fp16", [wrap(x)], payload=wrap(payload), stream=6)
            assert launched() == (6, 1, 0)
        with pytest.raises(gc.CodecError, match=r"gradients\[0\] is on device 1, and payload on"):
            cuda.encode("fp16", [Interface(x)], payload=Interface(gpu.empty(20, "u1")), stream=0)
    with pytest.raises(RuntimeError, match=r"device 1: .*no such device"):
        cuda.encode("fp16", [Interface(x)], payload=Interface(payload), stream=0)


def test_nothing_to_do(gpu: Heap) -> None:
    payload = Interface(gpu.empty(0, np.uint8))
    for gradients in ([], [Interface(gpu.empty((0, 3), np.float32))]):
        cuda.encode("topk:density=0.1", gradients, payload=payload, stream=0)
        workspace = Interface(gpu.empty(16, np.uint8))
        report = cuda.decode("sign", payload, gradients, workspace=workspace, stream=0)
        assert report.wait()


def test_dlpack_is_asked_not_to_synchronise(gpu: Heap) -> None:
    x = DLPack(gpu.put(np.zeros(4, np.float32)))
    cuda.encode("fp16", [x], payload=Interface(gpu.empty(8, np.uint8)), stream=0)
    assert x.streams == [-1]


def test_damaged_bytes_show_in_the_report(gpu: Heap) -> None:
    codec = codec_of("topk:density=0.1")
    wire = gpu.empty(codec.payload_size(100), np.uint8)
    wire[:] = 0xFF
    out = Interface(gpu.empty(100, np.float32))
    workspace = Interface(gpu.empty(cuda.decode_workspace(codec, [100]), np.uint8))
    report = cuda.decode(codec, Interface(wire), [out], workspace=workspace, stream=9)
    with pytest.raises(gc.CodecError, match="payload of segment 0 is no payload of this codec"):
        report.wait()
    assert launched()[0] == 9


def test_importing_the_package_does_not_load_it() -> None:
    code = (
        "import sys, gradcomp; from gradcomp import cuda; "
        "assert not {'gradcomp._cuda', 'tensorflow', 'torch', 'cupy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradcomp._cuda", None)
    with pytest.raises(gc.MissingDependencyError, match=r"Type, .*\.ci/cuda_extension\.sh"):
        cuda.devices()
    assert (Path(__file__).parents[1] / BUILD).is_file()


def test_devices(gpu: Heap) -> None:
    assert cuda.devices() == (1, "")
    with devices(0):
        assert cuda.devices() == (0, "cudaErrorEmulated: no such device")
