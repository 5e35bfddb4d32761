"""The benchmarks under a strategy: what they conclude from numbers, and one small run of each."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.child import Child, ChildError
from bench.overhead import __main__ as overhead
from bench.overhead.rows import Row, make_row
from bench.overhead.variants import PLAIN, VARIANTS, Variant
from bench.seeds import __main__ as seeds
from bench.seeds.pairs import Training, compare, hook_differs, margin

EXACT, LOSSY = VARIANTS[3], VARIANTS[-1]


def training(seed: int, accuracy: float, codec: str = "none", engine: str = "plain") -> Training:
    start = f"start of {seed}"
    return Training(
        codec, codec, engine, seed, "a data set", 8, accuracy, [accuracy], start, "end", 1.0
    )


def trainings(*differences: float) -> list[Training]:
    """A pair for each difference, in reverse order of seeds, as they may end."""
    pairs = [
        (training(seed, 90 + seed), training(seed, 90 + seed + difference, "4-bit", "optimizer"))
        for seed, difference in enumerate(differences)
    ]
    return [one for pair in reversed(pairs) for one in pair]


def test_interval_is_students() -> None:
    """By hand: mean −0.2, deviations 0.2 0.1 0 −0.1 −0.2, so s² = 0.1 / 4; t = 2.776 in tables."""
    row = compare(trainings(0.0, -0.1, -0.2, -0.3, -0.4), "4-bit")
    assert row.differences == [0.0, -0.1, -0.2, -0.3, -0.4]
    assert row.mean == pytest.approx(-0.2)
    assert row.margin == pytest.approx(2.776 * math.sqrt(0.025) / math.sqrt(5), rel=1e-3)
    assert row.accuracy == pytest.approx(92 - 0.2)


def test_one_pair_has_no_interval() -> None:
    assert margin([0.1]) == math.inf
    assert margin([0.1, 0.1]) == 0


@pytest.mark.parametrize(
    ("differences", "kept", "sure"),
    [
        ((-0.5, -0.5), True, True),
        ((-0.5, -0.52), False, False),
        ((0.0, -0.4), True, False),
        ((-3.0, 3.0, 0.3), True, False),
        ((0.4, 0.5), True, True),
    ],
)
def test_a_codec_out_of_its_bound_is_found(differences, kept, sure) -> None:
    row = compare(trainings(*differences), "4-bit")
    assert (row.kept, row.sure) == (kept, sure)
    line, good = seeds.verdict([row], [], judged=True)
    assert good == kept
    assert ("NOT within bound: 4-bit" in line) != kept
    assert ("The interval of 4-bit reaches below" in line) == (kept and not sure)


def test_trainings_that_are_no_pair_are_refused() -> None:
    two = trainings(0.0, 0.0)
    with pytest.raises(ValueError, match="4-bit, seed 0: begun with other weights"):
        compare([*two[:3], dataclasses.replace(two[3], start="other")], "4-bit")
    with pytest.raises(ValueError, match=re.escape("seeds [1]")):
        compare(two[:3], "4-bit")


def test_a_hook_that_trains_otherwise_is_found() -> None:
    both = [training(1, 90, "4-bit", "optimizer"), training(1, 90, "4-bit", "hook")]
    assert hook_differs(both) == []
    apart = [both[0], dataclasses.replace(both[1], end="other")]
    assert hook_differs(apart) == ["4-bit"]
    _, good = seeds.verdict([], hook_differs(apart), judged=False)
    assert not good


def printed(table: Any, width: int, capsys: pytest.CaptureFixture[str]) -> str:
    Console(width=width).print(table)
    return capsys.readouterr().out


def test_table_of_seeds_is_shown_in_full(capsys) -> None:
    all_five = trainings(0.0, -0.1, -0.2, -0.3, -0.4)
    text = printed(seeds.table([compare(all_five, "4-bit")], all_five), seeds._WIDTH, capsys)
    assert "-0.20" in text
    assert "-0.40 … -0.00" in text
    assert "-0.10 -0.20 -0.30" in text
    assert "≥ -0.50" in text


CHECKED = {"parameters": 8, "losses": [1.0], "finite": True, "equal": True, "weights": "a"}


def row(variant: Variant, **changes: Any) -> Row:
    rounds, plain = [[0.3, 0.4, 0.5], [0.1, 0.1, 0.1]], [[0.2, 0.2, 0.2], [0.1, 0.1, 0.1]]
    return make_row(variant, CHECKED | changes, CHECKED, rounds, plain)


def test_a_row_is_what_was_measured(capsys) -> None:
    measured = row(EXACT)
    assert (measured.steps, measured.rounds, measured.parameters) == (6, 2, 8)
    assert (measured.median_ms, measured.overhead_ms) == (200, 50)
    assert (measured.low_ms, measured.high_ms) == (100, 375)
    assert (measured.ratio, measured.ratio_low, measured.ratio_high) == (1.5, 1, 2)
    text = printed(overhead.table([row(v) for v in VARIANTS], 0.5), overhead._WIDTH, capsys)
    assert all(variant.label in text for variant in VARIANTS)
    assert "1.00 … 2.00" in text


@pytest.mark.parametrize(
    ("variant", "changes", "fault"),
    [
        (PLAIN, {}, None),
        (EXACT, {}, None),
        (LOSSY, {"weights": "b"}, None),
        (LOSSY, {}, "nothing was compressed"),
        (EXACT, {"weights": "b"}, "differ from the plain strategy's"),
        (LOSSY, {"weights": "b", "finite": False}, "not finite"),
        (LOSSY, {"weights": "b", "equal": False}, "different weights"),
    ],
)
def test_wrong_first_steps_are_found(variant, changes, fault) -> None:
    found = row(variant, **changes).faults
    assert len(found) == (fault is not None)
    assert not found or fault in found[0]


def test_a_child_that_fails_or_hangs_shows_why() -> None:
    with (
        Child(["bench.no_such_module"], timeout=60) as child,
        pytest.raises(ChildError, match=r"ended with status 1\n.*No module named bench.no_such"),
    ):
        child.ask(1)
    with (
        Child(["timeit", "-n1", "-r1", "import time; time.sleep(60)"], timeout=0.5) as child,
        pytest.raises(ChildError, match=r"no answer within 0\.5 s"),
    ):
        child.answer()


def test_missing_data_are_told(monkeypatch, capsys) -> None:
    monkeypatch.setattr(seeds, "find_source", lambda: "digits")
    assert seeds.main([]) == 1
    assert "install Debian's package dataset-fashion-mnist" in capsys.readouterr().out


def test_seeds_train_in_pairs(tmp_path: Path, capsys) -> None:
    assert seeds.main(["--quick", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "Too short to judge accuracy" in told
    runs = [json.loads(line) for line in (tmp_path / "seeds.jsonl").read_text().splitlines()]
    by_engine = {run["engine"]: run for run in runs}
    assert sorted(by_engine) == ["hook", "optimizer", "plain"]
    assert {run["steps"] for run in runs} == {2 * (1000 // 64)}
    assert len({run["start"] for run in runs}) == 1
    assert by_engine["optimizer"]["end"] == by_engine["hook"]["end"] != by_engine["plain"]["end"]
    assert all(run["accuracy"] > 30 for run in runs)


def test_reductions_are_measured(tmp_path: Path, capsys) -> None:
    assert overhead.main(["--quick", "--out", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "overhead.jsonl").read_text().splitlines()]
    assert [row["reduction"] for row in rows] == [v.label for v in (PLAIN, EXACT, LOSSY)]
    assert all(row["median_ms"] > 0 and not row["faults"] for row in rows)
    assert [row["steps"] for row in rows] == [8, 4, 4]
    assert rows[0]["ratio"] == 1
    assert "Every reduction is right" in capsys.readouterr().out
