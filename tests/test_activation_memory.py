"""Memory is really saved in a graph, and only because unpacking waits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).with_name("activation_memory.py"))
MODES = (
    "plain",
    "recompute_grad",
    "fp16",
    "quantize:bits=8",
    "fp16+recompute",
    "fp16+recompute+open",
    "plain+xla",
    "fp16+recompute+xla",
)


def peak(mode: str) -> float:
    """MiB above what the process held before the step."""
    environment = {
        # Other tests run the same code; coverage's tracer would take a quarter of the time.
        **{name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")},
        "PYTHONPATH": str(Path(PROGRAM).parents[1]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        # What is freed goes back to the system at once: the peak is of what is alive, not of what
        # an allocator keeps. oneDNN would bring a pool of its own.
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    process = subprocess.run(
        [sys.executable, PROGRAM, mode],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return int(process.stdout.split()[-2]) / 2**20


@pytest.fixture(scope="module")
def peaks() -> dict[str, float]:
    measured = {mode: peak(mode) for mode in MODES}
    print({mode: round(value) for mode, value in measured.items()})
    return measured


def test_packing_saves_memory(peaks: dict[str, float]) -> None:
    # What is kept is a half, a quarter or less of plain's two to six tensors a layer; one layer's
    # own work comes on top.
    assert peaks["fp16"] < 0.6 * peaks["plain"]
    assert peaks["quantize:bits=8"] < 0.4 * peaks["plain"]
    assert peaks["fp16+recompute"] < 0.4 * peaks["plain"]
    assert peaks["fp16+recompute"] < 0.85 * peaks["recompute_grad"]


def test_without_the_gate_nothing_is_saved(peaks: dict[str, float]) -> None:
    assert peaks["fp16+recompute+open"] > 1.5 * peaks["fp16+recompute"]


def test_memory_is_saved_under_xla_too(peaks: dict[str, float]) -> None:
    # Both with what XLA itself takes to compile.
    assert peaks["fp16+recompute+xla"] < 0.75 * peaks["plain+xla"]
