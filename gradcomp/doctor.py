"""The command `gradcomp doctor`: what is installed, what works, and what mends the rest."""

from __future__ import annotations

import json
import platform
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradcomp._version import __version__
from gradcomp.cuda.native import BUILD
from gradcomp.probe import PROBES

PACKAGE = Path(__file__).parent
PROBE_TIMEOUT_SECONDS = 120.0
STATE_STYLES = {"works": "green", "absent": "yellow", "slow": "yellow", "broken": "red"}
NEW_MEMORY = 0.5  # least part of a large tensor's pages that are new at every step, to tell of it

# On x86 oneDNN's allocator keeps freed memory; huge pages make it cheap to ask for new memory.
KEEP_MEMORY = (
    "export TF_ENABLE_ONEDNN_OPTS=1  # or os.environ, before TensorFlow is imported"
    if platform.machine() == "x86_64"
    else "export GLIBC_TUNABLES=glibc.malloc.hugetlb=1  # before Python starts"
)


@dataclass(frozen=True)
class Finding:
    """One part of the installation: what is there or wrong, and the command that mends it.

    What most machines do without has no command.
    """

    name: str
    state: Literal["works", "absent", "slow", "broken"]
    detail: str
    remedy: str = ""


def run(required: set[str], console: Console | None = None) -> int:
    """Prints the report.

    Args:
      required: names out of "native", "tensorflow" and "horovod".
      console: where to print; standard output by default.
    Returns:
      0 if everything required works, else 1.
    """
    console = console or Console(highlight=False)
    findings = examine()
    console.print(_inventory(findings.values(), required))
    console.print(_engines(findings))
    unwell = [finding for finding in findings.values() if finding.state != "works"]
    _print_remedies(console, unwell)
    failed = [finding for finding in unwell if finding.name in required]
    if failed:
        told = " and ".join(f"{finding.name} is {finding.state}" for finding in failed)
        console.print(f"[red]Required, but {told}.[/red]")
    else:
        console.print(f"[green]Everything required works: {', '.join(sorted(required))}.[/green]")
    return 1 if failed else 0


def examine() -> dict[str, Finding]:
    """Probes the native modules, TensorFlow with its GPU kernels, and Horovod at the same time."""
    with ThreadPoolExecutor() as pool:
        facts = dict(zip(PROBES, pool.map(probe, PROBES), strict=True))
    memory = _memory(facts["tensorflow"])
    return {
        "native": _native(facts["native"]),
        "cuda": _cuda(facts["cuda"]),
        "tensorflow": _tensorflow(facts["tensorflow"]),
        **({"memory": memory} if memory else {}),
        "gpu": _gpu(facts["tensorflow"]),
        "horovod": _horovod(facts["horovod"], facts["tensorflow"].get("version")),
    }


def probe(name: str, timeout: float = PROBE_TIMEOUT_SECONDS) -> dict[str, Any]:
    """The facts that `gradcomp.probe` prints about `name`, or how its process ended instead."""
    command = [sys.executable, "-m", "gradcomp.probe", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing it did not end within {timeout:.0f} s"}
    lines = done.stdout.strip().splitlines()
    try:
        facts = json.loads(lines[-1])
    except (IndexError, ValueError):
        facts = None
    if done.returncode == 0 and isinstance(facts, dict):
        return facts
    if done.returncode < 0:
        return {"error": f"importing it ends the process: {signal.Signals(-done.returncode).name}"}
    last_words = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    return {"error": f"importing it ends the process with {done.returncode}: {last_words}"}


def _native(facts: dict[str, Any]) -> Finding:
    if "path" in facts:
        return Finding("native", "works", facts["path"])
    if "absent" in facts:
        return Finding("native", "absent", "the CPU kernels were not built", _reinstall())
    return Finding("native", "broken", facts["error"], _reinstall())


def _cuda(facts: dict[str, Any]) -> Finding:
    if "absent" in facts:
        told = f"not built: {BUILD} in the checkout makes it, for CuPy's and PyTorch's arrays"
        return Finding("cuda", "absent", told)
    if "runtime" not in facts:
        return Finding("cuda", "broken", facts["error"], f"{BUILD}  # in gradcomp's source folder")
    detail = f"gradcomp._cuda for CUDA {facts['runtime'] // 1000}.{facts['runtime'] % 1000 // 10}"
    if facts["gpus"] == 0:
        return Finding("cuda", "absent", f"{detail}, but no GPU: {facts['why']}")
    return Finding("cuda", "works", f"{detail}, {_gpus(facts['gpus'])}")


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _tensorflow(facts: dict[str, Any]) -> Finding:
    wanted = shlex.quote(_requirement("tensorflow"))
    if "absent" in facts:
        return Finding("tensorflow", "absent", "not installed", _pip(wanted))
    if "version" not in facts:
        return Finding("tensorflow", "broken", facts["error"], _pip(f"--force-reinstall {wanted}"))
    if "unsupported" in facts:
        return Finding("tensorflow", "broken", facts["unsupported"], _pip(wanted))
    detail = f"TensorFlow {facts['version']}"
    if "error" in facts:
        return Finding("tensorflow", "broken", f"{detail}: {facts['error']}", _reinstall())
    detail += f", Keras {facts['keras']}, {_gpus(facts['gpus'])}, gradcomp's ops load"
    return Finding("tensorflow", "works", detail)


def _memory(facts: dict[str, Any]) -> Finding | None:
    """Whether TensorFlow keeps the memory of freed CPU tensors; nothing where it does not run."""
    if "new_memory" not in facts:
        return None
    if facts["new_memory"] < NEW_MEMORY:
        return Finding("memory", "works", "TensorFlow keeps the memory of freed CPU tensors")
    detail = (
        "large CPU tensors are new memory at every step, and page faults take longer than kernels;"
        " see Memory of an op's outputs in docs/performance.md"
    )
    return Finding("memory", "slow", detail, KEEP_MEMORY)


def _gpu(facts: dict[str, Any]) -> Finding:
    """The GPU kernels of the ops, which are for those with a GPU only: no remedy without one."""
    kernels = facts.get("gpu_kernels")
    if kernels is None:
        return Finding("gpu", "absent", "not loaded: gradcomp's ops do not load in TensorFlow")
    if kernels["loaded"]:
        return Finding("gpu", "works", "gradcomp's ops have GPU kernels")
    detail = f"GPU kernels are not loaded: {kernels['why']}"
    if facts["gpus"] == 0:
        return Finding("gpu", "absent", f"{detail}; `nvidia-smi` lists what the driver sees")
    return Finding("gpu", "broken" if kernels["broken"] else "absent", detail, _rebuild_gpu())


def _horovod(facts: dict[str, Any], tensorflow_version: str | None) -> Finding:
    build = (
        f"PYTHON={shlex.quote(sys.executable)} sh {shlex.quote(str(PACKAGE / 'build_horovod.sh'))}"
    )
    if "absent" in facts:
        return Finding("horovod", "absent", "not installed", build)
    if "version" not in facts:
        return Finding("horovod", "broken", facts["error"], build)
    detail = f"Horovod {facts['version']}"
    wanted = _requirement("horovod")
    if f"horovod=={facts['version']}" != wanted:
        return Finding("horovod", "broken", f"{detail}, but gradcomp works with {wanted}", build)
    if "error" in facts:
        return Finding("horovod", "broken", f"{detail}: {facts['error']}", build)
    detail += f" built for TensorFlow {facts['built_for']}"
    if facts["built_for"] != tensorflow_version:
        return Finding("horovod", "broken", f"{detail}, not for {tensorflow_version}", build)
    if not facts["carriers"]:
        return Finding("horovod", "broken", f"{detail}, without Gloo, MPI or NCCL", build)
    detail += f", with {', '.join(facts['carriers'])}"
    if "mpi" not in facts["carriers"]:
        detail += " (no MPI: start it with horovodrun, not with mpirun)"
    return Finding("horovod", "works", detail)


def _requirement(name: str) -> str:
    """What the extra `name` of gradcomp asks of the package `name`, such as "horovod==0.28.1"."""
    try:
        lines = metadata.requires("gradcomp") or []
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        lines = []
    mine = [line for line in lines if line.startswith(name) and "extra" in line]
    return mine[0].split(";")[0].strip() if mine else name


def _pip(arguments: str) -> str:
    return f"{shlex.quote(sys.executable)} -m pip install {arguments}"


def _reinstall() -> str:
    checkout = PACKAGE.parent
    if (checkout / "Makefile").is_file():
        return f"make -C {shlex.quote(str(checkout))} setup"
    return _pip("--force-reinstall --no-deps .") + "  # in the folder of gradcomp's sources"


def _rebuild_gpu() -> str:
    checkout = PACKAGE.parent
    if (checkout / "Makefile").is_file():
        return f"make -C {shlex.quote(str(checkout))} cuda"
    return (
        _pip("--force-reinstall --no-deps --no-build-isolation -C cmake.define.GRADCOMP_CUDA=ON .")
        + "  # in the folder of gradcomp's sources, with nvcc 13"
    )


def _inventory(findings: Iterable[Finding], required: set[str]) -> Table:
    table = Table("part", "state", title=f"gradcomp {__version__}", title_justify="left")
    table.add_column("what is there", overflow="fold")  # paths are to be copied
    table.add_row(
        "python", "[green]works[/green]", f"Python {platform.python_version()}, {sys.executable}"
    )
    table.add_row("numpy", "[green]works[/green]", f"NumPy {metadata.version('numpy')}")
    for finding in findings:
        style = STATE_STYLES[finding.state]
        asked = " (required)" if finding.name in required else ""
        table.add_row(
            finding.name + asked, f"[{style}]{finding.state}[/{style}]", escape(finding.detail)
        )
    return table


def _engines(findings: dict[str, Finding]) -> Table:
    abilities = {
        "NumPy arrays": (
            ["native"],
            "every codec encodes and decodes arrays; TensorFlow is not imported",
        ),
        "TensorFlow tensors": (
            ["native", "tensorflow"],
            "every codec encodes and decodes tensors, eager and in tf.function, on the CPU"
            " or, where gpu works, on GPUs",
        ),
        "Horovod": (
            ["native", "tensorflow", "horovod"],
            "gradcomp.horovod: DistributedOptimizer, DistributedGradientTape, allreduce",
        ),
    }
    table = Table("engine", "what it can do", title="Engines", title_justify="left")
    for engine, (needs, ability) in abilities.items():
        lacking = [need for need in needs if findings[need].state != "works"]
        text = (
            f"[yellow]nothing yet: it needs {' and '.join(lacking)}[/yellow]"
            if lacking
            else ability
        )
        table.add_row(engine, text)
    return table


def _print_remedies(console: Console, unwell: Iterable[Finding]) -> None:
    """One command a line, unwrapped and unstyled, to be copied as it stands."""
    names: dict[str, list[str]] = {}
    for finding in unwell:
        if finding.remedy:
            names.setdefault(finding.remedy, []).append(finding.name)
    for remedy, mended in names.items():
        console.print(f"To mend {' and '.join(mended)}, type:")
        console.print(f"  {remedy}", markup=False, soft_wrap=True)
