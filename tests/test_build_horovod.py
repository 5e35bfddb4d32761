"""`build_horovod.sh`: MPI where there is one, and a Gloo that loses no time."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

import gradcomp

SCRIPT = Path(gradcomp.__file__).parent / "build_horovod.sh"
TOOLS = (
    *("cat", "cp", "dirname", "env", "grep", "gzip", "mkdir", "mktemp", "nproc", "rm", "sed"),
    *("sh", "tar", "tr"),
)
# Told to download, it copies the archive beside it; told to install, it shows what it is given.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then echo /nowhere; exit; fi
echo "$* WITH_MPI=${HOROVOD_WITH_MPI:-} WITHOUT_MPI=${HOROVOD_WITHOUT_MPI:-}"
for last; do
  if [ "${before:-}" = -d ]; then cp "$ARCHIVE" "$last"; fi
  before=$last
done
if [ -e "$last/third_party" ]; then
  cd "$last"/third_party/gloo/gloo && cat ../../../CMakeLists.txt *.cc */*/*.cc
fi
"""
FLAGS = "CMAKE_CXX_FLAGS_RELWITHDEBINFO"
CMAKE = f'string(REPLACE "-O2" "-O3" {FLAGS} "${{{FLAGS}}}")\n'
GLOO = {
    "allgatherv.cc": "if (i == 0) {\n  out->send(to, a);\n  out->recv(from, b);\n}\n"
    "out->send(to, c);\nout->recv(from, d);\n",
    "alltoallv.cc": "int recvRank = (myRank + worldSize - i) % worldSize;\n"
    "in->send(\n    to, e);\nout->recv(\n    from, f);\n",
    "transport/tcp/pair.cc": '#include "gloo/transport/tcp/pair.h"\n'
    "lock(m_, std::try_to_lock);\nif (!lock) {\n  return;\n}\n",
}


def build(
    folder: Path, *programs: str, gloo: dict[str, str] = GLOO, **settings: str
) -> subprocess.CompletedProcess[str]:
    """What the script says where PATH has its tools and `programs` only, and builds nothing."""
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool))
    for name, text in [("python", PYTHON), *((program, "#!/bin/sh\n") for program in programs)]:
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    sources = folder / "horovod-0.28.1" / "third_party" / "gloo" / "gloo"
    for name, text in gloo.items():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_text(text)
    (folder / "horovod-0.28.1" / "CMakeLists.txt").write_text(CMAKE)
    archive = folder / "horovod-0.28.1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / "horovod-0.28.1", "horovod-0.28.1")
    return subprocess.run(
        [str(folder / "sh"), str(SCRIPT)],
        env={
            "PATH": str(folder),
            "PYTHON": str(folder / "python"),
            "ARCHIVE": str(archive),
            **settings,
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("programs", "settings", "with_mpi", "told"),
    [
        (["mpicxx"], {}, True, "mpicxx"),
        ([], {}, False, "not found (no mpicxx on PATH"),
        ([], {"HOROVOD_WITH_MPI": "1"}, True, "asked for by HOROVOD_WITH_MPI"),
        (["mpicxx"], {"HOROVOD_WITHOUT_MPI": "1"}, False, "left out"),
    ],
)
def test_mpi_is_built_in_where_it_is(tmp_path, programs, settings, with_mpi, told) -> None:
    done = build(tmp_path, *programs, **settings)
    assert done.returncode == 0, done.stderr
    assert "horovod==0.28.1" in done.stdout
    assert ("WITH_MPI=1 WITHOUT_MPI=\n" if with_mpi else "WITH_MPI= WITHOUT_MPI=1\n") in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("MPI: ")]
    assert told in line


def test_debugging_symbols_are_not_built(tmp_path) -> None:
    told = build(tmp_path).stdout
    assert CMAKE.replace('"-O2"', '"-O2 -g"') in told


def test_gloo_receives_before_it_sends_and_yields_where_it_would_spin(tmp_path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(
        "if (i == 0) {\n  out->recv(from, b);\n  out->send(to, a);\n}\n"
        "out->recv(from, d);\nout->send(to, c);\n"
        "int recvRank = sendRank;\nout->recv(\n    from, f);\nin->send(\n    to, e);\n"
        '#include "gloo/transport/tcp/pair.h"\n#include <thread>\n'
        "lock(m_, std::try_to_lock);\nif (!lock) {\n    std::this_thread::yield();\n  return;\n}\n"
    )


@pytest.mark.parametrize("name", GLOO)
def test_another_gloo_is_not_built(tmp_path, name) -> None:
    done = build(tmp_path, gloo=GLOO | {name: "out->send(to, a);\n"})
    assert done.returncode == 1
    assert f"{name} of this Horovod's Gloo is not the one that is known" in done.stderr
    assert "--force-reinstall" not in done.stdout
