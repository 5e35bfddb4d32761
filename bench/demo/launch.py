"""Runs one training on two Horovod processes and reads what they record."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.demo.runs import RANKS, Run

ROOT = Path(__file__).parents[2]
_POLL_S = 0.2
_LOOPBACK = "lo"  # both ranks are on this machine, whatever other interfaces it has
_PEER_TIMEOUT_S = 120  # importing TensorFlow on a busy machine takes long
_TIMEOUT_S = 900.0
_GRACE_S = 20.0
_LOG_LINES = 25
# Empty lines, and what TensorFlow prints at each start, whatever its log level.
_CHATTER = re.compile(r"\[\d+\]<std...>:(\s*$|WARNING: All log messages|[IW]\d{4} |.* cuInit: )")


class RunError(Exception):
    """A training did not come to its end; the message carries what its ranks printed last."""


@dataclass(frozen=True)
class Outcome:
    """What a training recorded: rank 0's epochs, and the result of each rank."""

    epochs: list[dict[str, Any]]
    results: list[dict[str, Any]]


def train(
    run: Run,
    data: str,
    epochs: int | None = None,
    on_record: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Outcome:
    """Trains as `run` says; `on_record` gets rank 0's records as they come.

    Raises:
      RunError: a rank failed, or all of them hung.
    """
    with tempfile.TemporaryDirectory(prefix="gradcomp-demo-") as folder:
        records = Path(folder)
        log = records / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                _command(run, data, epochs, records),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            rank_0 = _follow(process, records / "rank-0.jsonl", on_record)
        finally:
            _stop(process)
        if process.returncode:
            raise RunError(f"{run.label}: a rank failed\n{_last_lines(log)}")
        results = [_lines(records / f"rank-{rank}.jsonl")[-1] for rank in range(RANKS)]
    return Outcome([record for record in rank_0 if record["kind"] == "epoch"], results)


def _command(run: Run, data: str, epochs: int | None, records: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "horovod.runner.launch"),  # horovodrun, of this environment
        *("-np", str(RANKS), "--gloo", "--network-interfaces", _LOOPBACK),
        *("--gloo-timeout-seconds", str(_PEER_TIMEOUT_S)),
        *(sys.executable, "-m", "bench.demo.train"),
        *("--compression", run.compression, "--data", data, "--record", str(records)),
        *([] if run.error_feedback else ["--no-error-feedback"]),
        *([] if epochs is None else ["--epochs", str(epochs)]),
    ]


def _follow(
    process: subprocess.Popen[bytes], path: Path, on_record: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    deadline = time.monotonic() + _TIMEOUT_S
    running = True
    while running:
        running = process.poll() is None
        for record in _lines(path)[len(seen) :]:
            seen.append(record)
            on_record(record)
        if running:
            if time.monotonic() > deadline:
                raise RunError(f"the training did not end within {_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)
    return seen


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends horovodrun, which ends its ranks: asked to, and also when it is killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_lines(log: Path) -> str:
    """The end of what each rank wrote, and who died first; without ranks, what horovodrun wrote."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if not _CHATTER.match(line)]
    # By rank: the one that only lost its peer must not push the cause out of sight.
    shown = [
        line
        for rank in range(RANKS)
        for line in [line for line in told if line.startswith(f"[{rank}]<")][-_LOG_LINES:]
    ]
    exits = [line for line in told if re.match(r"Process \d+ exit", line)]
    return "\n".join(shown + exits or told[-_LOG_LINES:])


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file that may be still growing, or not there yet."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
