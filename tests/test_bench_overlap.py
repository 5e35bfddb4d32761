"""The picture of what overlaps: its spans, its files, and a real step of two ranks."""

import json
import os
import subprocess
import sys

import pytest
from ranks import environment
from rich.console import Console

from bench.overlap.__main__ import table, timelines
from bench.overlap.timeline import (
    BARRIER,
    OVERLAPPED,
    Span,
    ended_early,
    spans,
    write_picture,
    write_trace,
)
from bench.ranks import told

STEP = {"seconds": 0.9, "forward": 0.2, "ready": [0.3, 0.5], "reduced": [0.4, 0.8]}


def test_spans_follow_one_another() -> None:
    lane = "forward, backward"
    backward = [
        Span(lane, "forward", 0.0, 0.2),
        Span(lane, "backward 0", 0.2, 0.3),
        Span(lane, "backward 1", 0.3, 0.5),
    ]
    free = [Span("exchange 0", "bucket 0", 0.3, 0.4), Span("exchange 1", "bucket 1", 0.5, 0.8)]
    assert spans(STEP, barrier=False) == backward + free
    waiting = [Span("exchange 0", "bucket 0", 0.5, 0.6), Span("exchange 1", "bucket 1", 0.5, 0.8)]
    assert spans(STEP | {"reduced": [0.6, 0.8]}, barrier=True) == backward + waiting


def test_what_ended_while_backward_ran_is_counted() -> None:
    assert ended_early(STEP) == 1
    assert ended_early(STEP | {"reduced": [0.5, 0.8]}) == 0


def test_files(tmp_path) -> None:
    found = {"none": {kind: {"times": [0.9], "step": STEP} for kind in (OVERLAPPED, BARRIER)}}
    steps = timelines(found)
    assert list(steps) == ["none, overlapped", "none, behind a barrier"]
    write_trace(steps, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {*steps, "forward, backward", "exchange 0", "exchange 1"}
    spent = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    assert len(spent) == 5
    assert spent[0] == {
        "name": "forward",
        "ph": "X",
        "pid": 0,
        "tid": 0,
        "ts": 0.0,
        "dur": pytest.approx(2e5),
    }
    write_picture(steps, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    console = Console(width=120, record=True)
    console.print(table(found, "1gbit", 2, {"layers": 2, "width": 64}))
    assert "1 of 2 buckets" in console.export_text()


def test_ranks_verify_and_time_both_kinds_of_steps() -> None:
    size = {"width": 64, "layers": 3, "batch": 8, "codec": "quantize:bits=8", "rounds": 1}
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo"]
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "bench.overlap.worker", json.dumps(size)],
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = told(done.stdout)
    for kind in (OVERLAPPED, BARRIER):
        step = found[kind]["step"]
        assert len(found[kind]["times"]) == 1
        assert len(step["ready"]) == len(step["reduced"]) == 3
        # Steps are so short here that stamps may swap places.
        for when in (step["forward"], *step["ready"], *step["reduced"]):
            assert 0 < when < step["seconds"]
