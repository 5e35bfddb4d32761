"""Every instruction set gives the same bytes: all sweeps in C++ end with one digest."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "native"


def run(*command: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_sweep_ends_with_one_digest_on_every_instruction_set() -> None:
    run("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DGRADCOMP_NATIVE_TESTS=ON")
    run("cmake", "--build", BUILD, "--parallel", "2")
    report = run("ctest", "--test-dir", BUILD, "--no-tests=error", "--verbose")
    # Those that this processor lacks are skipped; baseline and the dispatched never are.
    for level in ("baseline", "dispatch"):
        assert f"{level}: " in report, report
