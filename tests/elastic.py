"""Starts elastic Horovod jobs whose hosts are all this machine, under different names."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
# Each is a host of its own to Horovod, which gives up on a host where a worker has failed.
HOSTS = ("localhost", "127.0.0.1", "127.1")


def launch_elastic(
    program: list[str],
    folder: Path,
    hosts: list[str],
    gloo_timeout: int = 120,
    timeout: float = 300,
) -> str:
    """Runs `python program` on each slot of `hosts`, such as "localhost:1"; returns its output.

    What `set_hosts` writes into the folder `ELASTIC_FOLDER` changes the hosts of the running job.

    Args:
      gloo_timeout: seconds that workers wait for one that starts, and those that a worker which is
        alive waits for another that is, while a third has died.
    """
    set_hosts(folder, hosts)
    script = folder / "discover.sh"
    script.write_text(f"#!/bin/sh\ncat '{folder / 'hosts'}'\n")
    script.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "ELASTIC_FOLDER": str(folder),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(gloo_timeout),
    }
    command = [
        *(sys.executable, "-m", "horovod.runner.launch", "--gloo", "--network-interfaces", "lo"),
        *("-np", str(len(hosts)), "--min-num-proc", "2", "--max-num-proc", "3"),
        *("--host-discovery-script", str(script), "--elastic-timeout", "60"),
        *("--reset-limit", "4", sys.executable, *program),
    ]
    log = folder / "horovodrun.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | str = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = f"no end after {timeout} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # where it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    told = log.read_text(errors="replace")
    assert code == 0, f"{code}:\n{told[-6000:]}"
    return told


def set_hosts(folder: Path, hosts: list[str]) -> None:
    """What the discovery script will tell from now on."""
    new = folder / "hosts.new"
    new.write_text("".join(f"{host}\n" for host in hosts))
    new.replace(folder / "hosts")


def pace(workers: int) -> float:
    """Bytes a second of a link that is pretended among so many workers."""
    return 1e4 * workers


def note(event: str, **facts: Any) -> None:
    """Adds an event to those of this process, for the test to read."""
    worker = f"{os.environ['HOROVOD_HOSTNAME']}.{os.environ['HOROVOD_LOCAL_RANK']}"
    with (Path(os.environ["ELASTIC_FOLDER"]) / f"{worker}.events").open("ab") as file:
        pickle.dump((event, facts), file)


def events(folder: Path) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """What each worker noted, by host and local rank such as "localhost.0", in order."""
    found = {}
    for path in folder.glob("*.events"):
        noted = found[path.stem] = []
        with path.open("rb") as file:
            while True:
                try:
                    noted.append(pickle.load(file))
                except EOFError:
                    break
    return found
