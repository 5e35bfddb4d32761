"""The examples, started as the docs say."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import horovod.tensorflow as hvd
import pytest
from elastic import HOSTS, launch_elastic

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> str:
    environment = {
        # The launcher says what carries the bytes.
        **{k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")},
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


FIT = ("horovod_fit.py", "--epochs", "1", "--images", "3200")
LOOP = ("horovod_loop.py", "--steps", "120")


@functools.cache
def accuracy_on_two_ranks(script: str, *options: str) -> float:
    horovodrun = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo"]
    return accuracy_in(run(*horovodrun, sys.executable, f"examples/{script}", *options))


@pytest.mark.parametrize("command", [FIT, LOOP], ids=["fit", "loop"])
def test_example_learns_on_two_ranks(command) -> None:
    assert accuracy_on_two_ranks(*command) > 0.5


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("mirrored_fit.py", ["--epochs", "1", "--images", "3200"]),
        ("mirrored_loop.py", ["--steps", "120"]),
    ],
)
def test_example_learns_on_two_replicas(script, options) -> None:
    assert accuracy_in(run(sys.executable, f"examples/{script}", *options)) > 0.5


def accuracy_in(told: str) -> float:
    return float(told.split("test accuracy ")[1].split()[0].rstrip(","))


def test_elastic_example_learns_on_two_hosts(tmp_path) -> None:
    program = [str(ROOT / "examples/horovod_elastic.py"), "--epochs", "1", "--images", "3200"]
    told = launch_elastic(program, tmp_path, [f"{host}:1" for host in HOSTS[:2]])
    assert accuracy_in(told) > 0.5, told


@pytest.mark.skipif(not hvd.mpi_built(), reason="Horovod was built without MPI")
def test_mpirun_trains_as_horovodrun_does() -> None:
    """As Horovod's launcher does it: on root's account and with more ranks than cores, too."""
    script, *options = FIT
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    told = run(*mpirun, sys.executable, f"examples/{script}", *options)
    assert accuracy_in(told) == accuracy_on_two_ranks(*FIT)
