"""Runs scenarios under TensorFlow's strategies: two logical devices, or several workers.

A scenario module has a dict `SCENARIOS` of name → function that takes the strategy; every worker
calls them in the same order. As a program (`python strategies.py MODULE FOLDER`) this file is one
worker, or the process with two devices.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import lean
from ranks import TESTS, Outcome, Outcomes, measure_first_only

from bench.hosts import Hosts, address

DEVICES = 2
PORT = 7177  # of every host's worker: nobody else is there


def launch_devices(module: str, folder: Path, timeout: float = 300) -> Outcomes:
    """Runs a module's scenarios under a MirroredStrategy of two logical CPU devices."""
    return _launch(module, folder, [None], timeout)


def launch_workers(module: str, workers: int, folder: Path, timeout: float = 300) -> Outcomes:
    """Runs a module's scenarios on the workers of a MultiWorkerMirroredStrategy."""
    return _launch(module, folder, configurations(workers), timeout)


def launch_hosts(module: str, hosts: Hosts, folder: Path, timeout: float = 300) -> Outcomes:
    """Runs a module's scenarios on workers, each on a host of its own."""
    addresses = [f"{address(host)}:{PORT}" for host in range(hosts.count)]
    return _launch(module, folder, _configurations(addresses), timeout, hosts)


def run_workers(program: list[str], workers: int, folder: Path, timeout: float = 300) -> list[int]:
    """Runs `python program` on each worker to its end; the exit codes."""
    return _run(program, folder, configurations(workers), timeout)


def configurations(workers: int) -> list[str]:
    """`TF_CONFIG` of each worker, on free ports of this machine."""
    sockets = [socket.socket() for _ in range(workers)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return _configurations(addresses)


def _configurations(addresses: list[str]) -> list[str]:
    return [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        for index in range(len(addresses))
    ]


def start(
    program: list[str],
    folder: Path,
    index: int,
    configuration: str | None,
    hosts: Hosts | None = None,
) -> Any:
    """One worker's process; its output goes to a file of the folder."""
    where = [] if hosts is None else ["ip", "netns", "exec", hosts.name(index)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONFAULTHANDLER": "1",  # one that crashes says where
        **({} if configuration is None else {"TF_CONFIG": configuration}),
    }
    with (folder / f"worker{index}.log").open("wb") as output:
        return subprocess.Popen(
            [*where, sys.executable, *program],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _launch(
    module: str, folder: Path, settings: list[Any], timeout: float, hosts: Hosts | None = None
) -> Outcomes:
    program = [str(Path(__file__)), module, str(folder)]
    codes = _run(program, folder, settings, timeout, hosts)
    outcomes = Outcomes()
    outcomes.ending = f"exit codes {codes}; the last lines of each:\n{tail(folder)}"
    for index in range(len(settings)):
        file = folder / f"worker{index}.pickle"
        if file.exists():
            for name, outcome in pickle.loads(file.read_bytes()).items():
                outcomes.setdefault(name, []).append(outcome)
    assert outcomes, f"no worker came to a result: {outcomes.ending}"
    return outcomes


def _run(
    program: list[str],
    folder: Path,
    settings: list[Any],
    timeout: float,
    hosts: Hosts | None = None,
) -> list[int]:
    processes = [start(program, folder, i, setting, hosts) for i, setting in enumerate(settings)]
    try:
        for process in processes:
            process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"no end after {timeout} s:\n{tail(folder)}") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)  # a hung TensorFlow ignores all others
                process.wait()
    return [process.returncode for process in processes]


def tail(folder: Path) -> str:
    """The end of what each worker printed."""
    logs = sorted(folder.glob("worker*.log"))
    return "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)


def _main(module: str, folder: str) -> None:
    index = 0
    if "TF_CONFIG" in os.environ:
        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        measure_first_only(index)
    with lean.importing():
        import tensorflow as tf

    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        (cpu,) = tf.config.list_physical_devices("CPU")
        devices = [tf.config.LogicalDeviceConfiguration()] * DEVICES
        tf.config.set_logical_device_configuration(cpu, devices)
        # Its default reduction is of one program only: a second model would meet the first's keys.
        strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(DEVICES)],
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
        )
    outcomes: dict[str, Outcome] = {}
    file = Path(folder) / f"worker{index}.pickle"
    for name, scenario in importlib.import_module(module).SCENARIOS.items():
        try:
            outcomes[name] = Outcome(True, scenario(strategy))
        except Exception:
            outcomes[name] = Outcome(False, traceback.format_exc())
        file.write_bytes(pickle.dumps(outcomes))
        if not outcomes[name].ok:
            os._exit(1)  # workers are out of step from here on
    lean.leave()  # TensorFlow's coordination service waits for the slowest worker's exit


if __name__ == "__main__":
    _main(*sys.argv[1:])
