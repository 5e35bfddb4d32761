"""`gradcomp doctor` names what is wrong and what mends it, and never fails by itself."""

from __future__ import annotations

import io
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import gradcomp
from gradcomp import doctor
from gradcomp.kernels import gpu

PACKAGE = Path(gradcomp.__file__).parent


def run_doctor(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "400"}  # wide enough for no cell to wrap
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, "-m", "gradcomp", "doctor", *arguments],
        env=environment,
        cwd=path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def block(folder: Path, module: str, error: str = "ModuleNotFoundError(name, name=name)") -> None:
    """Lets `import module` raise `error` in every Python that has `folder` on its path."""
    (folder / "sitecustomize.py").write_text(f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise {error}

sys.meta_path.insert(0, Blocker())
""")


def state_of(part: str, output: str) -> str:
    found = re.search(rf"│ {part}(?: \(required\))? +│ (\w+) +│", output)
    assert found, output
    return found.group(1)


def write_package(folder: Path, name: str, source: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)


def test_complete_installation() -> None:
    done = run_doctor("--require", "tensorflow,horovod")
    assert done.returncode == 0, done.stdout
    for part in ("native", "tensorflow", "horovod"):
        assert state_of(part, done.stdout) == "works"
    assert "TensorFlow 2." in done.stdout
    if state_of("gpu", done.stdout) != "works":
        assert "GPU kernels are not loaded: " in done.stdout
    assert "with gloo" in done.stdout
    assert "Everything required works" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("blocked", "remedy"),
    [("tensorflow", "pip install 'tensorflow<2.22,>=2.15'"), ("horovod", "build_horovod.sh")],
)
def test_absent_library(tmp_path: Path, blocked: str, remedy: str) -> None:
    block(tmp_path, blocked)
    done = run_doctor("--require", blocked, path=tmp_path)
    assert done.returncode == 1
    assert state_of(blocked, done.stdout) == "absent"
    assert state_of("native", done.stdout) == "works"
    assert remedy in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_what_is_absent_and_not_asked_for_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "native": {"path": "_native.so"},
        "cuda": {"absent": 1},
        "tensorflow": {"absent": 1},
        "horovod": {"absent": 1},
    }
    monkeypatch.setattr(doctor, "probe", answers.__getitem__)
    output = io.StringIO()
    assert doctor.run({"native"}, Console(file=output, width=200)) == 0
    assert "nothing yet: it needs tensorflow and horovod" in output.getvalue()
    assert doctor.run({"native", "horovod"}, Console(file=output, width=200)) == 1


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("__version__ = '2.14.1'", "2.14.1"),
        ("__version__ = '2.22.0'", "2.22.0"),
        ("raise ImportError('libcudnn is missing')", "libcudnn is missing"),
        ("import os; os.abort()", "SIGABRT"),
        ("import sys; sys.stderr.write('no AVX'); sys.exit(3)", "no AVX"),
    ],
)
def test_broken_tensorflow(tmp_path: Path, source: str, told: str) -> None:
    write_package(tmp_path, "tensorflow", source)
    done = run_doctor("--require", "tensorflow", path=tmp_path)
    assert done.returncode == 1
    assert state_of("tensorflow", done.stdout) == "broken"
    assert told in done.stdout
    assert "tensorflow<2.22,>=2.15" in done.stdout
    assert "Required, but tensorflow is broken." in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("error", "state"),
    [
        ("ModuleNotFoundError(name, name=name)", "absent"),
        ("ImportError('undefined symbol: f')", "broken"),
    ],
)
def test_native_library_missing_or_broken(tmp_path: Path, error: str, state: str) -> None:
    block(tmp_path, "gradcomp._native", error)
    done = run_doctor(path=tmp_path)
    assert done.returncode == 1
    assert state_of("native", done.stdout) == state
    assert f"make -C {PACKAGE.parent} setup" in done.stdout
    assert "nothing yet: it needs native" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_hanging_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "tensorflow", "import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "did not end within 1 s" in doctor.probe("tensorflow", timeout=1.0)["error"]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"version": "0.27.0"}, "gradcomp works with horovod==0.28.1"),
        ({"version": "0.28.1", "error": "ImportError: undefined symbol"}, "undefined symbol"),
        ({"version": "0.28.1", "built_for": "2.18.1", "carriers": ["gloo"]}, "not for 2.21.0"),
        ({"version": "0.28.1", "built_for": "2.21.0", "carriers": []}, "without Gloo, MPI or NCCL"),
    ],
)
def test_broken_horovod(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, object], told: str
) -> None:
    answers = {
        "native": {"path": "_native.so"},
        "cuda": {"absent": 1},
        "tensorflow": {"version": "2.21.0", "keras": "3.15.1", "gpus": 0},
        "horovod": facts,
    }
    monkeypatch.setattr(doctor, "probe", answers.__getitem__)
    finding = doctor.examine()["horovod"]
    assert finding.state == "broken"
    assert told in finding.detail
    assert "build_horovod.sh" in finding.remedy


@pytest.mark.parametrize(
    ("gpus", "loading", "state", "told", "mends"),
    [
        (2, gpu.Loading(True), "works", "gradcomp's ops have GPU kernels", False),
        (0, gpu.Loading(False, "TensorFlow sees no GPU"), "absent", "nvidia-smi", False),
        (1, gpu.Loading(False, "_gpu_ops.so was not built"), "absent", "not built", True),
        (1, gpu.Loading(False, "for TensorFlow 2.20.0", True), "broken", "2.20.0", True),
    ],
)
def test_gpu_kernels(
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    loading: gpu.Loading,
    state: str,
    told: str,
    mends: bool,
) -> None:
    tensorflow = {"version": "2.21.0", "keras": "3.15.1", "gpus": gpus}
    answers = {
        "native": {"path": "_native.so"},
        "cuda": {"absent": True},
        "tensorflow": tensorflow | {"gpu_kernels": loading._asdict()},
        "horovod": {"absent": True},
    }
    monkeypatch.setattr(doctor, "probe", answers.__getitem__)
    finding = doctor.examine()["gpu"]
    assert finding.state == state
    assert told in finding.detail
    assert loading.why in finding.detail
    console = Console(file=io.StringIO(), width=400)
    assert doctor.run({"native"}, console) == 0
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert state_of("gpu", printed) == state
    assert (f"To mend gpu, type:\n  make -C {PACKAGE.parent} cuda" in printed) == mends


@pytest.mark.parametrize(("new", "state"), [(0.0, "works"), (1.0, "slow")])
def test_it_tells_whether_large_tensors_are_new_memory(
    monkeypatch: pytest.MonkeyPatch, new: float, state: str
) -> None:
    tensorflow = {"version": "2.21.0", "keras": "3.15.1", "gpus": 0, "new_memory": new}
    kernels = gpu.Loading(False, "no GPU", False)._asdict()
    answers = {
        "native": {"path": "_native.so"},
        "cuda": {"absent": 1},
        "tensorflow": tensorflow | {"gpu_kernels": kernels},
        "horovod": {"absent": 1},
    }
    monkeypatch.setattr(doctor, "probe", answers.__getitem__)
    console = Console(file=io.StringIO(), width=400)
    assert doctor.run({"native", "tensorflow"}, console) == 0
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert state_of("memory", printed) == state
    remedy = "GLIBC_TUNABLES" if platform.machine() != "x86_64" else "TF_ENABLE_ONEDNN_OPTS=1"
    assert (f"To mend memory, type:\n  export {remedy}" in printed) == (state == "slow")


def test_new_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    huge = "[always]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    # Where the system gives huge pages unasked, new memory costs few faults.
    assert (doctor.probe("tensorflow")["new_memory"] >= doctor.NEW_MEMORY) == (not huge)


def test_the_remedy_keeps_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    name, value = doctor.KEEP_MEMORY.split()[1].split("=", 1)
    monkeypatch.setenv(name, value)
    assert doctor.probe("tensorflow")["new_memory"] < 0.1


@pytest.mark.parametrize(("carriers", "mpi"), [(["gloo"], False), (["gloo", "mpi"], True)])
def test_it_tells_whether_mpirun_can_start_horovod(
    monkeypatch: pytest.MonkeyPatch, carriers: list[str], mpi: bool
) -> None:
    answers = {
        "native": {"path": "_native.so"},
        "cuda": {"absent": 1},
        "tensorflow": {"version": "2.21.0", "keras": "3.15.1", "gpus": 0},
        "horovod": {"version": "0.28.1", "built_for": "2.21.0", "carriers": carriers},
    }
    monkeypatch.setattr(doctor, "probe", answers.__getitem__)
    finding = doctor.examine()["horovod"]
    assert finding.state == "works"
    assert ("with gloo, mpi" in finding.detail) == mpi
    assert ("no MPI: start it with horovodrun" in finding.detail) != mpi


@pytest.mark.parametrize(
    ("facts", "state", "told"),
    [
        ({"absent": True}, "absent", "not built: .ci/cuda_extension.sh in the checkout makes it"),
        ({"error": "ImportError: GLIBC"}, "broken", "ImportError: GLIBC"),
        (
            {"runtime": 13000, "gpus": 0, "why": "no driver"},
            "absent",
            "gradcomp._cuda for CUDA 13.0, but no GPU: no driver",
        ),
        ({"runtime": 12080, "gpus": 2, "why": ""}, "works", "for CUDA 12.8, 2 GPUs"),
    ],
)
def test_a_line_for_the_cuda_module(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, object], state: str, told: str
) -> None:
    answers = {
        "native": {"path": "_native.so"},
        "cuda": facts,
        "tensorflow": {"absent": 1},
        "horovod": {"absent": 1},
    }
    monkeypatch.setattr(doctor, "probe", answers.__getitem__)
    output = io.StringIO()
    assert doctor.run({"native"}, Console(file=output, width=300)) == 0
    assert state_of("cuda", output.getvalue()) == state
    assert told in output.getvalue()
    assert ("To mend cuda, type:" in output.getvalue()) == (state == "broken")


def test_remedy_script_is_in_the_package_and_names_the_pinned_version() -> None:
    script = (PACKAGE / "build_horovod.sh").read_text()
    assert doctor._requirement("horovod") in script


def test_version_and_usage() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gradcomp", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("--version").stdout == f"gradcomp {gradcomp.__version__}\n"
    assert "doctor" in run("--help").stdout
    unknown = run("doctor", "--require", "mxnet")
    assert unknown.returncode == 2
    assert "'mxnet' is not one of native, tensorflow, horovod" in unknown.stderr
