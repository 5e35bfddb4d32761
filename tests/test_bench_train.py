"""Time to accuracy: models, data, what is judged of timings and trainings, what is printed."""

import json
import math

import numpy as np
import pytest
from rich.console import Console

import bench.train.__main__ as program
from bench.train.__main__ import main, timings_of
from bench.train.models import TASKS, conv, dense, library_text, transformer
from bench.train.report import add_lines, choices, read_trainings, table, write_lines, write_plot
from bench.train.rows import (
    AUTO,
    BASELINE,
    HALF,
    METHODS,
    Case,
    Timing,
    Training,
    learned_as,
    rows_of,
    unmet,
)

CASE = Case("dense", "1gbit", 4)
CODECS = {"4-bit": ("quantize:bits=4", "none"), "sign": ("sign", "none")}


def timing(method: str, step: float, case=CASE, **other) -> Timing:
    options = {
        "batch": 256,
        "times": (step,) * 4,
        "sent": 1e6,
        "planned": 0,
        "codecs": CODECS.get(method, ()),
    } | other
    return Timing(case=case, method=method, **options)


def training(learns: str, accuracy=90.0, seed=1, **other) -> Training:
    options = {
        "model": "dense",
        "ranks": 4,
        "steps": 400,
        "start": f"start{seed}",
        "curve": ((200, 70.0), (300, 85.0)),
        "accuracy": accuracy,
    } | other
    return Training(learns=learns, seed=seed, **options)


def compared(*ours: tuple[str, float], case=CASE, full=True):
    """Rows of Horovod's own, a second and 0.6 seconds a step, and of methods with theirs."""
    steps = [(BASELINE.label, 1.0), (HALF.label, 0.6), *ours]
    timings = [timing(method, step, case) for method, step in steps]
    return rows_of(timings, [training(t.method) for t in timings], 85.0, full)


def test_models_have_the_sizes_that_are_said() -> None:
    assert dense().count_params() == pytest.approx(10.3e6, rel=0.01)
    assert conv().count_params() == pytest.approx(0.2e6, rel=0.02)
    assert transformer().count_params() < 0.5e6


def test_the_text_is_the_library_and_labels_follow() -> None:
    data = library_text()
    assert len(data.x_train) > 20_000
    np.testing.assert_array_equal(data.x_train[:, 1:], data.y_train[:, :-1])
    text = bytes(data.x_train[:2000].reshape(-1).astype(np.uint8)).decode("ascii")
    assert "import " in text
    assert data.x_train.max() < 128
    assert TASKS["transformer"].data is library_text


def test_time_to_accuracy_is_steps_times_the_step_on_the_link() -> None:
    one = training("4-bit")
    assert (one.steps_to(85.0), one.steps_to(95.0), one.accuracy) == (300, None, 90.0)
    uneven = timing("4-bit", 0.0, times=(0.1, 0.2, 9.0))
    plain = timing(BASELINE.label, 1.0, times=(1.0, 1.0, 10.0))
    learned = [training(m, seed=s) for m in (BASELINE.label, "4-bit") for s in (1, 2)]
    row = rows_of([plain, uneven], learned, 85.0, full=True)[1]
    assert row.reached == pytest.approx(300 * 0.2)
    assert row.sooner == pytest.approx(1.0 / 0.2)
    assert row.ratio == pytest.approx(0.2)  # the median of 0.1, 0.2 and 0.9: round by round
    assert timing("4-bit", 0.0, times=(1.0, 2.0, 4.0, 100.0)).spread == pytest.approx(1.0)


def test_rows_compare_with_horovod() -> None:
    rows = compared(("4-bit", 0.1))
    ours = rows[2]
    assert (ours.timing.step, ours.samples) == (pytest.approx(0.1), pytest.approx(2560))
    assert ours.reached == pytest.approx(30)
    assert (ours.sooner, ours.sooner_than_half) == (pytest.approx(10), pytest.approx(6))
    assert ours.margin == math.inf
    assert unmet(rows) == []


def test_differences_are_paired_by_seed() -> None:
    found = [
        training(m, accuracy=a + s, seed=s)
        for m, a in ((BASELINE.label, 80.0), ("sign", 79.6))
        for s in (1, 2, 3)
    ]
    timings = [timing(BASELINE.label, 1.0), timing("sign", 1.0)]
    # Trainings are added to a file in any order.
    rows = rows_of(timings, found[::-1], 70.0, full=True)
    assert rows[1].difference == pytest.approx(-0.4)
    assert rows[1].margin == pytest.approx(0.0, abs=1e-9)
    assert "-0.40 points" in rows[1].faults[0]
    assert not rows_of(timings, found, 70.0, full=False)[1].faults


def test_what_did_not_begin_alike_is_no_pair() -> None:
    timings = [timing(BASELINE.label, 1.0), timing("4-bit", 0.1)]
    found = [training(BASELINE.label), training("4-bit", start="x")]
    with pytest.raises(ValueError, match="4-bit began with other"):
        rows_of(timings, found, 85.0, full=True)


def test_an_auto_learns_what_it_chose_on_its_link() -> None:
    others = [timing(BASELINE.label, 1.0), timing("4-bit", 0.1), timing("sign", 0.1)]
    four = timing(AUTO.label, 0.1, codecs=CODECS["4-bit"])
    none = timing(AUTO.label, 0.1, codecs=("none", "none"))
    assert learned_as(four, [*others, four]) == "4-bit"
    assert learned_as(none, [*others, none]) == "none|none"
    assert learned_as(others[0], others) == BASELINE.label
    rows = rows_of(
        [others[0], none], [training(BASELINE.label), training("none|none", 89.0)], 85.0, True
    )
    assert rows[1].difference == pytest.approx(-1.0)


def test_a_slow_best_codec_is_told_where_speed_was_promised() -> None:
    assert unmet(compared(("4-bit", 0.5), ("sign", 0.4))) == [
        "best codec 2.50 × sooner than Horovod float32, not 4",
        "best codec 1.50 × sooner than Horovod FP16, not 2",
    ]
    assert unmet(compared(("4-bit", 0.5), case=Case("dense", "10gbit", 4))) == []


def test_auto_must_not_be_slower_where_computing_takes_the_time() -> None:
    for step, faults in ((1.02, 0), (1.04, 1)):
        case = Case("conv", "unshaped", 4)
        timings = [timing(BASELINE.label, 1.0, case), timing(AUTO.label, step, case, codecs=("a",))]
        told = unmet(rows_of(timings, [training(BASELINE.label), training("a")], 85.0, False))
        assert len(told) == faults
        assert all("4.0% longer, not 3%" in text for text in told)


def test_a_row_that_never_got_there_has_no_time() -> None:
    timings = [timing(BASELINE.label, 1.0), timing("sign", 0.1)]
    found = [training(BASELINE.label), training("sign", curve=((200, 60.0),))]
    row = rows_of(timings, found, 85.0, full=False)[1]
    assert row.steps is row.reached is row.sooner is None


def test_what_is_printed_and_written(tmp_path) -> None:
    timings = [timing(BASELINE.label, 1.0), timing("4-bit", 0.1), timing("sign", 0.1)]
    timings.append(timing(AUTO.label, 0.2, codecs=("fp8", "none")))
    found = [training(BASELINE.label), training("4-bit"), training("fp8|none")]
    found.append(training("sign", curve=((200, 50.0), (300, 55.0))))
    rows = rows_of(timings, found, 85.0, full=True)
    console = Console(width=160, record=True)
    console.print(table(rows, {"dense": 85.0}, "the data"))
    text = console.export_text()
    for told in ("dense, 4 × 1gbit", "10.00 ×", "never"):
        assert told in text
    assert choices(rows) == ["dense, 4 × 1gbit: auto chose fp8, none"]
    write_lines(rows, tmp_path / "train.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert [line["timing"]["method"] for line in lines] == [t.method for t in timings]
    assert lines[-1]["margin"] is None
    add_lines(found[:2], tmp_path / "trainings.jsonl")
    add_lines(found[2:], tmp_path / "trainings.jsonl")
    assert read_trainings(tmp_path / "trainings.jsonl") == found
    write_plot(rows, found, {"dense": 85.0}, tmp_path / "train.png")
    assert (tmp_path / "train.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_trained_is_not_trained_again(tmp_path, monkeypatch, capsys) -> None:
    asked = []

    def run(command, ranks, link, timeout, console):
        settings = json.loads(command[-1])
        asked.append((command[-2], link, settings))
        if "rounds" in settings:
            fast = {BASELINE.label: 1.0, "sign": 0.1}
            found = [vars(timing(m, fast[m])) for m in settings["labels"]]
            return [{k: v for k, v in one.items() if k != "case"} for one in found], link
        steps, seed = settings["steps"], settings["seed"]
        same = {"seed": seed, "steps": steps, "start": f"start{seed}", "accuracy": 90.0}
        return [
            {"learns": one, "curve": [[steps // 2, 90.0]], **same} for one in settings["learns"]
        ], link

    monkeypatch.setattr(program, "on_hosts_or_loopback", run)
    parts = ["--model", "dense", "--ranks", "2", "--codecs", "sign", "--out", str(tmp_path)]
    assert main([*parts, "--link", "1gbit", "--seeds", "1"]) == 0
    assert main([*parts, "--link", "10gbit", "--seeds", "2"]) == 0
    assert [link for _, link, _ in asked] == ["1gbit", "unshaped", "10gbit", "unshaped"]
    assert [s["seed"] for _, _, s in asked if "seed" in s] == [1, 2]
    assert asked[-1][2]["learns"] == [BASELINE.label, "sign"]
    assert asked[-1][2]["steps"] == TASKS["dense"].steps
    assert [t.seed for t in read_trainings(tmp_path / "trainings.jsonl")] == [1, 1, 2, 2]
    assert "Everything is reached" in capsys.readouterr().out


def test_what_rank_0_prints_is_read() -> None:
    told = {"method": "sign", "batch": 8, "times": [0.1], "sent": 1.0, "planned": 9}
    found = timings_of(CASE, [told | {"codecs": ["sign", "none"]}])
    assert found == [
        timing("sign", 0.1, batch=8, times=(0.1,), sent=1.0, planned=9, codecs=("sign", "none"))
    ]


def test_parts_can_be_asked_for(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    for option in ("--quick", "--model", "--ranks", "--link", "--codecs", "--seeds"):
        assert option in told
    assert {m.label for m in METHODS} >= {"8-bit", "4-bit", "top-k 1 %", "sign", "auto"}
