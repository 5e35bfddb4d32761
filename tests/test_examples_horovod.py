"""The examples, started as docs/horovod.md says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> str:
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        arguments,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("horovod_fit.py", ["--epochs", "1", "--images", "3200"]),
        ("horovod_loop.py", ["--steps", "120"]),
    ],
)
def test_example_learns_on_two_ranks(script, options) -> None:
    horovodrun = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo"]
    told = run(*horovodrun, sys.executable, f"examples/{script}", *options)
    accuracy = float(told.split("test accuracy ")[1].split()[0].rstrip(","))
    assert accuracy > 0.5, told


def test_horovod_run_as_documented() -> None:
    page = (ROOT / "docs/horovod.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    expected = program.split("# ")[-1].strip()
    # horovod.run pickles the function by value only where it is the main program's.
    assert run(sys.executable, "-c", program).splitlines()[-1] == expected
