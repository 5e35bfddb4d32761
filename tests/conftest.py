"""What every test shares: quiet TensorFlow, and no settings inherited from the shell."""

from __future__ import annotations

import gc
import os

import lean
import pytest

import gradcomp

gc.disable()  # until everything is imported
# `make sanitize` runs the kernel tests on libraries built with sanitizers.
LIBRARIES = "GRADCOMP_TEST_LIBRARIES"
if LIBRARIES in os.environ:
    gradcomp.__path__.insert(0, os.environ[LIBRARIES])

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before anything imports TensorFlow
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
for name in [name for name in os.environ if name.startswith(("GRADCOMP_", "HOROVOD_"))]:
    if name != LIBRARIES:  # which pytest's workers are yet to see
        del os.environ[name]
# With MPI built in, a process without a launcher would initialize it, which it can do only once.
os.environ.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")


def pytest_collection_finish() -> None:
    lean.collect_rarely()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes come first: they take minutes, and the last would run alone."""
    items.sort(key=lambda item: not any(name.startswith("launch") for name in vars(item.module)))
