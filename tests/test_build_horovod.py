"""`build_horovod.sh` builds with MPI where there is one, unless it is told not to."""

import shutil
import subprocess
from pathlib import Path

import pytest

import gradcomp

SCRIPT = Path(gradcomp.__file__).parent / "build_horovod.sh"
TOOLS = ("sh", "cat", "dirname", "env", "mkdir", "mktemp", "nproc", "rm")
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then echo /nowhere; exit; fi
echo "$* WITH_MPI=${HOROVOD_WITH_MPI:-} WITHOUT_MPI=${HOROVOD_WITHOUT_MPI:-}"
"""


def build(folder: Path, *programs: str, **settings: str) -> str:
    """What the script says where PATH has its tools and `programs` only, and builds nothing."""
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool))
    for name, text in [("python", PYTHON), *((program, "#!/bin/sh\n") for program in programs)]:
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [str(folder / "sh"), str(SCRIPT)],
        env={"PATH": str(folder), "PYTHON": str(folder / "python"), **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "horovod==0.28.1" in done.stdout
    return done.stdout


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
    said = build(tmp_path, *programs, **settings)
    assert ("WITH_MPI=1 WITHOUT_MPI=\n" if with_mpi else "WITH_MPI= WITHOUT_MPI=1\n") in said
    (line,) = [line for line in said.splitlines() if line.startswith("MPI: ")]
    assert told in line
