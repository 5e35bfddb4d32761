"""`python -m bench.gpu`: everything but the GPU, by the emulated kernels."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from emulated_gpu import DLPack, Heap, devices, gpu
from kernel_cases import dtype_of
from rich.console import Console

import bench.gpu.__main__ as program
from bench.gpu.compositions import compositions
from bench.gpu.device import Unusable, open_device
from bench.gpu.kernels import CODES, OPERATIONS, Buffers, Kernel, kernels_of
from bench.gpu.report import LARGEST, TOPK, TORCH_TOPK, Row, targets
from bench.kernels.cases import specs
from gradcomp import cuda

__all__ = ["gpu"]

Array = np.ndarray[Any, Any]
NUMEL = 4096


class OnDevice(DLPack):
    """An array that can be sliced, as PyTorch's and CuPy's."""

    def __getitem__(self, part: slice) -> OnDevice:
        return OnDevice(self.array[part])


class Emulated:
    """bench.gpu.device.Device whose clock counts calls: each takes 1 ms, a copy 1 µs."""

    name, library = "emulated", "NumPy"
    dtypes: tuple[str, ...] = ("float32", "bfloat16")

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._copies = 0

    def put(self, array: Array) -> OnDevice:
        return OnDevice(self._heap.put(array))

    def get(self, x: OnDevice) -> Array:
        return x.array.copy()

    def empty(self, numel: int, dtype: str) -> OnDevice:
        return OnDevice(self._heap.empty(numel, dtype_of(dtype)))

    def copy(self, to: OnDevice, source: OnDevice) -> None:
        self._copies += 1
        to.array[...] = source.array

    def seconds(self, run: Callable[[], object], samples: int) -> list[float]:
        before = self._copies
        run()
        return [1e-6 if self._copies > before else 1e-3] * samples


@pytest.fixture
def device(gpu: Heap, monkeypatch: pytest.MonkeyPatch) -> Emulated:
    """Its arrays are of no library: the default stream is theirs."""
    for operation in ("encode", "decode", "pack_bits", "unpack_bits"):
        bare = getattr(cuda, operation)
        monkeypatch.setattr(cuda, operation, lambda *a, _f=bare, **k: _f(*a, stream=0, **k))
    return Emulated(gpu)


def run(device: Emulated, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[int, str]:
    monkeypatch.setattr(program, "ODD", 1111)
    output = io.StringIO()
    given = {"sizes": (NUMEL,)} | changes
    status = program.show(program.Run(device, **given), Console(file=output, width=150))
    return status, output.getvalue()


def test_all_kernels_are_verified_and_shown(
    device: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, told = run(device, monkeypatch)
    assert "Every kernel that ran equals the CPU's byte for byte." in told
    assert "Left out: PyTorch's operations (pip install torch)" in told
    assert status == 1  # something was left out
    machine, copy, *rows = [json.loads(line) for line in told.splitlines() if line[0] == "{"]
    assert machine["wrong"] == []
    assert copy["name"] == "copy" and copy["gb_per_s"] == pytest.approx(8 * NUMEL / 1e-6 / 1e9)
    assert len(rows) == 4 * len(specs()) + 2 * len(CODES)
    fp16 = {row["name"]: row for row in rows}["fp16 encode, feedback"]
    assert fp16["bytes_moved"] == 14 * NUMEL and fp16["seconds"] == 1e-3
    assert fp16["fraction_of_copy"] == pytest.approx(14 / 8 / 1000)
    assert fp16["verified"] is True
    masks = {row["name"]: row for row in rows}["masks unpack"]
    assert masks["bytes_moved"] == NUMEL * 9 / 8 and masks["verified"] is True
    assert "│ fp16 encode, feedback" in told and "1.000 ms" in told and "1.0 µs" in told


@pytest.mark.parametrize("spoilt", ["payload", "residual", "output"])
def test_bytes_that_differ_are_told(
    device: Emulated, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    """A device whose copies to the host have a bit flipped, in arrays of one kind."""
    monkeypatch.setattr(program, "specs", lambda: ["sign"])
    get = device.get
    sizes = {"payload": ("uint8", 1), "residual": ("float32", 1), "output": ("float32", 2)}
    dtype, first = sizes[spoilt]
    seen = []

    def flipped(x: OnDevice) -> Array:
        array = get(x)
        if array.dtype == dtype:
            seen.append(1)
            if len(seen) >= first:
                array.view(np.uint8)[5] ^= 1
        return array

    monkeypatch.setattr(device, "get", flipped)
    status, told = run(device, monkeypatch)
    assert status == 1
    assert f"the {spoilt} differs from the CPU's, first at byte 5" in told
    assert "Every kernel that ran equals" not in told


def test_codes_that_differ_are_told(device: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "unpack_bits", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="masks unpack: the unpacked codes differs"):
        list(kernels_of("masks", Buffers(device, 640)))


def test_a_flag_that_is_wrong_is_told(device: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.Report, "wait", lambda self: False)
    with pytest.raises(AssertionError, match="whether all is finite is said wrongly"):
        list(kernels_of("fp16", Buffers(device, 64)))


def test_what_there_is_no_time_for_is_named(
    device: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 100_000, 90))
    monkeypatch.setattr(program, "specs", lambda: ["fp16", "bf16"])
    status, told = run(device, monkeypatch, clock=lambda: float(next(now)), sizes=(64, 128))
    assert status == 1
    assert "Left out: bf16 at 64" in told
    assert "Left out: everything at 128 elements" in told
    assert "fp16 encode" in told and "bf16 encode" not in told


def test_kernels_run_again_as_they_were_verified(device: Emulated) -> None:
    buffers = Buffers(device, 640)
    for kernel in kernels_of("quantize:bits=4,stochastic=true", buffers):
        assert isinstance(kernel, Kernel)
        kernel.run()
    kernels = list(kernels_of("topk:density=0.1", buffers))
    for kernel in kernels:
        kernel.run()


def test_what_was_measured_is_shown_after_an_error(
    device: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "specs", lambda: ["fp16", "bf16"])
    seconds = device.seconds

    def failing(run: Callable[[], object], samples: int) -> list[float]:
        if len(failing_after) > 5:
            raise RuntimeError("cudaErrorIllegalAddress")
        failing_after.append(1)
        return seconds(run, samples)

    failing_after: list[int] = []
    monkeypatch.setattr(device, "seconds", failing)
    status, told = run(device, monkeypatch)
    assert status == 1
    assert "it broke off after fp16 decode at 4,096: RuntimeError: cudaErrorIllegalAddress" in told
    assert "│ fp16 encode, feedback" in told


def test_compositions_stand_beside_kernels_that_exist() -> None:
    x = MagicMock()
    x.numel.return_value = NUMEL
    kernels = {f"{spec} {operation}" for spec in specs() for operation in OPERATIONS}
    made = list(compositions(MagicMock(), x, MagicMock()))
    assert {one.like for one in made} <= kernels
    assert TORCH_TOPK in {one.name for one in made} and TOPK in kernels


def row(name: str, seconds: float, moved: int, verified: bool = True) -> Row:
    return Row(name, LARGEST, seconds, moved, 4e12, verified)


def test_targets() -> None:
    rows = [
        row("copy", 1.0, 4_000_000_000_000, verified=False),
        row("fp16 encode", 1.0, 3_600_000_000_000),
        row("sign decode", 1.0, 2_000_000_000_000),
        row(TOPK, 1.0, 3_200_000_000_000),
        row(TORCH_TOPK, 12.0, 1, verified=False),
    ]
    streaming, topk, faster = targets(rows)
    assert streaming.endswith("below it: sign decode 50%.")
    assert topk.endswith("1.25.") and faster.endswith("12.0 times.")
    assert targets([r for r in rows if "sign" not in r.name])[0].endswith("all kernels reach it.")
    assert targets([]) == []


def no_torch(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, name, modules.get(name))


def test_nothing_to_run_on(gpu: Heap, monkeypatch: pytest.MonkeyPatch) -> None:
    no_torch(monkeypatch)
    with pytest.raises(Unusable, match=r"torch does not import.*cupy does not.*pip install torch"):
        open_device()
    blind = SimpleNamespace(__version__="2.9+cpu", cuda=SimpleNamespace(is_available=lambda: False))
    no_torch(monkeypatch, torch=blind)
    with pytest.raises(Unusable, match=r"PyTorch 2.9\+cpu sees no GPU: it may be a build for CPUs"):
        open_device()
    with (
        devices(0),
        pytest.raises(Unusable, match=r"no GPU to run on: .*no such device.*nvidia-smi"),
    ):
        open_device()
    monkeypatch.setitem(sys.modules, "gradcomp._cuda", None)
    with pytest.raises(Unusable, match=r"\.ci/cuda_extension\.sh"):
        open_device()


def test_main_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing: ModuleType | None = None
    monkeypatch.setitem(sys.modules, "gradcomp._cuda", missing)
    assert program.main() == 2
    assert ".ci/cuda_extension.sh" in capsys.readouterr().out
