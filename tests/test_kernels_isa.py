"""Every instruction set gives the same bytes: all sweeps in C++ end with one digest."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "native"


def run(*command: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def report() -> str:
    run("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DGRADCOMP_NATIVE_TESTS=ON")
    run("cmake", "--build", BUILD, "--parallel", "2")
    return run("ctest", "--test-dir", BUILD, "--no-tests=error", "--verbose")


def test_the_sweep_ends_with_one_digest_on_every_instruction_set(report: str) -> None:
    # Those that this processor lacks are skipped; baseline and the dispatched never are.
    for level in ("baseline", "dispatch"):
        assert f"{level}: " in report, report


def test_avx512_is_run_on_other_processors_too(report: str) -> None:
    """Where it is not, one reads why."""
    told = re.search(r"^\d+: (v4-emulated: .*)", report, re.MULTILINE)
    if told is None or "expected" not in told[1]:
        pytest.skip(told[1] if told else "v4-emulated: this processor lacks AVX2")
