"""The ops by their GPU kernels, on emulated CUDA: the same tests as the CPU's kernels pass."""

import os
import subprocess
import sys
from pathlib import Path

import cuda_library
import pytest

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def library() -> Path:
    return cuda_library.build_ops()


@pytest.mark.parametrize(
    "tests",
    [
        ["test_ops.py", "test_kernels_bits.py"],
        ["test_ops_errors.py", "test_kernels_dropout.py"],
    ],
    ids=lambda t: t[0],
)
def test_bytes_and_errors_are_those_of_the_cpu(library: Path, tests: list[str]) -> None:
    options = ["-p", "emulated_gpu_ops", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(TESTS / test) for test in tests)],
        env=os.environ | {"EMULATED_GPU_OPS": str(library), "PYTHONPATH": str(TESTS)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
