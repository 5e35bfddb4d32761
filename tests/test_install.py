"""`pip install .` where there is no TensorFlow: NumPy works, the rest says what to type."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (built,) = folder.glob("gradcomp-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that holds the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    run(*PIP, "--python", interpreter, "install", wheel)
    return interpreter


def run(*command: object, **environment: str) -> str:
    # Neither coverage nor the checkout may reach the new environment.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("COV", "PYTHONPATH"))}
    done = subprocess.run(
        [str(word) for word in command],
        env=inherited | environment,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_wheel_holds_the_libraries_and_data_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    inside = {Path(name).name.split(".")[0] for name in names if name.endswith(".so")}
    assert inside == {"_native", "_ops"}
    assert {"gradcomp/py.typed", "gradcomp/_native.pyi", "gradcomp/build_horovod.sh"} <= set(names)
    assert any(name.endswith("LICENSE") for name in names)


def test_import_is_quick_and_leaves_tensorflow_alone(python: Path) -> None:
    # Processor time: other work on the machine doesn't count.
    timed = "import time; t = time.process_time(); import gradcomp; print(time.process_time() - t)"
    best = min(float(run(python, "-c", timed)) for _ in range(7))
    assert best < 0.3


def test_import_in_an_environment_with_tensorflow_does_not_import_it() -> None:
    script = "import sys, gradcomp; assert 'tensorflow' not in sys.modules"
    run(sys.executable, "-c", script, PYTHONPATH=str(ROOT))


def test_numpy_codec_works(python: Path) -> None:
    script = """
import numpy as np, gradcomp as gc
x = np.linspace(-1, 1, 1000, dtype=np.float32)
for codec in (gc.FP16(), gc.Quantize(bits=8), gc.TopK(density=1.0)):
    payload = codec.encode(x)
    assert payload.size == codec.payload_size(x.size)
    assert np.abs(codec.decode(payload, numel=x.size) - x).max() < 0.01, codec
"""
    run(python, "-c", script)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (
            "import gradcomp.kernels; gradcomp.kernels.load_ops()",
            "pip install 'tensorflow>=2.15,<2.22'",
        ),
        ("import gradcomp.horovod", "pip install 'tensorflow>=2.15,<2.22'"),
    ],
)
def test_first_use_of_what_is_missing_says_what_to_type(python: Path, use: str, told: str) -> None:
    script = f"""
from gradcomp.errors import MissingDependencyError
try:
    {use}
except MissingDependencyError as error:
    print(error)
"""
    assert told in run(python, "-c", script)


def test_command_is_installed(python: Path) -> None:
    command = python.with_name("gradcomp")
    assert run(command, "--version").startswith("gradcomp ")
    report = run(command, "doctor", COLUMNS="400")
    assert report.count("not installed") == 2
    assert "pip install 'tensorflow<2.22,>=2.15'" in report
