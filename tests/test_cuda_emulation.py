"""The emulation of CUDA notices what a device would hang on, or leave undefined."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import cuda_library
import numpy as np
import pytest


def run_fault(fault: int, seed: int) -> list[int]:
    """What each of 64 threads has read of shared memory."""
    out = np.full(64, -1, np.int32)
    cuda_library.set_seed(seed)
    assert cuda_library.library().emulated_fault(fault, ctypes.c_void_p(out.ctypes.data)) == 0
    return out.tolist()


def test_a_barrier_orders_what_random_threads_do() -> None:
    right = list(range(63, -1, -1))
    assert all(run_fault(0, seed) == right for seed in range(20))
    without = [run_fault(1, seed) for seed in range(20)]
    assert right not in without
    assert any(first != without[0] for first in without), "the seed does not change the order"


def test_one_warp_runs_ahead_of_another() -> None:
    """The barrier that is missing is between what the first warp reads and the next writes."""
    right = [3 * sum(range(64))] * 64
    assert all(run_fault(9, seed) == right for seed in range(20))
    wrong = [run_fault(10, seed) for seed in range(20)]
    assert any(sums[:32] != right[:32] for sums in wrong)
    assert any(sums[32:] != right[32:] for sums in wrong)


FAULTS = [
    (2, "divergent barrier: some threads have returned, others wait"),
    (3, "divergent barrier: not all threads come to it"),
    (4, "a lane of the mask is inactive: it has returned"),
    (5, "lanes of one mask are at different warp operations"),
    (6, "a shuffle reads a lane that is not in its mask"),
    (7, "a lane calls with a mask without itself"),
]
if "ASAN_OPTIONS" in os.environ:
    FAULTS.append((8, "out of bounds for type 'int [3]'"))


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_faults_end_with_a_message(fault: int, message: str) -> None:
    assert message in fault_in_a_process(fault)


def fault_in_a_process(fault: int) -> str:
    """What a process says that ends by a fault."""
    path = cuda_library.library()._name
    code = (
        "import ctypes, sys; out = (ctypes.c_int * 64)()\n"
        "ctypes.CDLL(sys.argv[1]).emulated_fault(int(sys.argv[2]), out)"
    )
    command = [sys.executable, "-S", "-c", code, path, str(fault)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr
