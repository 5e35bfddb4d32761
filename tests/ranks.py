"""Runs scenarios on real Horovod processes: one launch, many scenarios, one result each.

A scenario module has a dict `SCENARIOS` of name → function without arguments, which every rank
calls in the same order, and may have PROCESS_SETS for `hvd.init`. As a program
(`python ranks.py MODULE FOLDER`) this file is one rank.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import lean

TESTS = Path(__file__).parent
PROGRAM = (str(Path(__file__)),)  # one rank; a module and a folder are to be added


@dataclass(frozen=True)
class Outcome:
    """What one rank made of one scenario."""

    ok: bool
    value: Any  # what the scenario returned, or the traceback


class Outcomes(dict[str, list[Outcome]]):
    """Outcomes by the scenario's name, in rank order, and how the processes ended."""

    ending = ""  # the last lines they printed: all there is of one that died


def launch(
    module: str,
    ranks: int,
    folder: Path,
    env: dict[str, str] | None = None,
    timeout: float = 300,
    own_network: bool = False,
    hosts: tuple[int, ...] = (),
) -> Outcomes:
    """Runs all of a module's scenarios on `ranks` processes; outcomes by name, in rank order.

    With `own_network` the ranks are alone on a loopback interface of their own, in a network
    namespace, so that its counters show their bytes and nobody else's. `hosts` puts so many ranks
    on each of two names of this machine, which Horovod takes for two hosts.
    """
    program = [sys.executable, *PROGRAM, module, str(folder)]
    where = [f"{name}:{n}" for name, n in zip(("localhost", "127.0.0.1"), hosts, strict=False)]
    slots = ["-H", ",".join(where)] if where else []
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), "--gloo"]
    command = [*launcher, *slots, *program]
    if own_network:
        command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
    log = folder / "horovodrun.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment(), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"no end after {timeout} s:\n{_tail(log)}") from None
    outcomes = collect(folder, ranks)
    outcomes.ending = f"exit code {process.returncode}; the last lines:\n{_tail(log)}"
    assert outcomes, f"no rank came to a result: {outcomes.ending}"
    return outcomes


def environment() -> dict[str, str]:
    """What a rank needs beside this process's own variables."""
    return {
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",  # one that crashes says where
        # A rank that fails leaves the others waiting: end them soon, not after a minute.
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "20",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "40",
    }


def collect(folder: Path, ranks: int) -> Outcomes:
    """What ranks left in the folder: outcomes by name, in rank order."""
    outcomes = Outcomes()
    for rank in range(ranks):
        file = folder / f"rank{rank}.pickle"
        if not file.exists():  # ended by another rank's failure, which says more
            continue
        for name, outcome in pickle.loads(file.read_bytes()).items():
            outcomes.setdefault(name, []).append(outcome)
    return outcomes


def values(outcomes: Outcomes, name: str, ranks: int) -> list[Any]:
    """Each rank's result of a scenario; fails with a rank's traceback where it failed."""
    assert name in outcomes, f"{name} was not reached: {outcomes.ending}"
    for rank, outcome in enumerate(outcomes[name]):
        assert outcome.ok, f"on rank {rank}:\n{outcome.value}"
    reached = len(outcomes[name])
    assert reached == ranks, f"{name} was reached on {reached} ranks: {outcomes.ending}"
    return [outcome.value for outcome in outcomes[name]]


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-6000:]


def measure_first_only(index: int) -> None:
    """Ends coverage but in the first process: others run the same code, and it costs a quarter."""
    running = coverage.Coverage.current()
    if running is not None and index > 0:
        running.stop()


def _main(module: str, folder: str) -> None:
    measure_first_only(int(os.environ.get("HOROVOD_RANK", 0)))
    with lean.importing():
        import horovod.tensorflow as stock

        import gradcomp.horovod as hvd

        scenarios = importlib.import_module(module)
    hvd.init(process_sets=getattr(scenarios, "PROCESS_SETS", None))
    outcomes: dict[str, Outcome] = {}
    file = Path(folder) / f"rank{hvd.rank()}.pickle"
    for name, scenario in scenarios.SCENARIOS.items():
        try:
            outcomes[name] = Outcome(True, scenario())
        except Exception:
            outcomes[name] = Outcome(False, traceback.format_exc())
        file.write_bytes(pickle.dumps({n: o for n, o in outcomes.items()}))
        if not outcomes[name].ok:
            # Ranks are out of step from here on, and the others must be released.
            os._exit(1)
    # A shutdown ends Horovod on all ranks, also on one that is still at its last scenario.
    stock.allgather_object(None, name="all are done")
    hvd.shutdown()
    lean.leave()


if __name__ == "__main__":
    # Pickled results name this module as the tests import it.
    sys.modules["ranks"] = sys.modules["__main__"]
    Outcome.__module__ = "ranks"
    _main(*sys.argv[1:])
