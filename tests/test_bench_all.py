"""All benchmarks in one command."""

import importlib.util
import subprocess
import sys

import bench.__main__ as everything


def test_each_runs_in_its_small_size_and_none_stops_the_next(monkeypatch, capsys) -> None:
    ran = []

    def run(command, check):
        assert not check
        ran.append(command)
        return subprocess.CompletedProcess(command, int("allreduce" in command[-2]))

    monkeypatch.setattr(subprocess, "run", run)
    assert everything.main([]) == 1
    assert ran == [
        [sys.executable, "-m", f"bench.{name}", "--quick"] for name in everything.PROGRAMS
    ]
    told = capsys.readouterr().out
    assert "[1/4] python -m bench.kernels --quick" in told
    assert "bench.allreduce: ended with 1: not every target was reached" in told
    assert "bench.kernels: done" in told


def test_all_programs_are_there() -> None:
    for name in everything.PROGRAMS:
        assert importlib.util.find_spec(f"bench.{name}.__main__") is not None
