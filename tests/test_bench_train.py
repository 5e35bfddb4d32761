"""Time to accuracy: the models and data, what is judged of trainings, and what is printed."""

import json
import math

import numpy as np
import pytest
from rich.console import Console

from bench.train.__main__ import main, trainings_of
from bench.train.models import TASKS, conv, dense, library_text, transformer
from bench.train.report import table, write_lines, write_plot
from bench.train.rows import AUTO, BASELINE, HALF, METHODS, Case, Training, rows_of, unmet

CASE = Case("dense", "1gbit", 4)


def training(method: str, step: float, accuracy=90.0, seed=1, case=CASE, **other) -> Training:
    options = {
        "start": f"start{seed}",
        "batch": 256,
        "times": (step,) * 4,
        "sent": 1e6,
        "curve": ((2, 70.0), (3, 85.0), (4, accuracy)),
        "planned": 0,
        "chosen": "",
    } | other
    return Training(case=case, method=method, seed=seed, **options)


def pair(step: float, **options) -> list[Training]:
    return [training(BASELINE.label, 1.0, **options), training(HALF.label, 0.6, **options)]


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


def test_time_to_accuracy_is_of_training_only() -> None:
    one = training("4-bit", 0.5)
    assert one.seconds_to(85.0) == pytest.approx(1.5)
    assert one.seconds_to(95.0) is None
    assert one.accuracy == 90.0


def test_rows_compare_with_horovod() -> None:
    rows = rows_of([*pair(1.0), training("4-bit", 0.1)], 85.0, full=True)
    ours = rows[2]
    assert (ours.step, ours.samples) == (pytest.approx(0.1), pytest.approx(2560))
    assert ours.reached == pytest.approx(0.3)
    assert (ours.sooner, ours.sooner_than_half) == (pytest.approx(10), pytest.approx(6))
    assert ours.margin == math.inf
    assert unmet(rows) == []


def test_differences_are_paired_by_seed() -> None:
    found = [
        training(m, 1.0, accuracy=a + s, seed=s)
        for m, a in ((BASELINE.label, 80.0), ("sign", 79.6))
        for s in (1, 2, 3)
    ]
    rows = rows_of(found, 70.0, full=True)
    assert rows[1].difference == pytest.approx(-0.4)
    assert rows[1].margin == pytest.approx(0.0, abs=1e-9)
    assert "-0.40 points" in rows[1].faults[0]
    assert not rows_of(found, 70.0, full=False)[1].faults


def test_what_did_not_begin_alike_is_no_pair() -> None:
    with pytest.raises(ValueError, match="4-bit began with other"):
        rows_of([*pair(1.0), training("4-bit", 0.1, start="x")], 85.0, full=True)


def test_a_slow_best_codec_is_told_where_speed_was_promised() -> None:
    rows = rows_of([*pair(1.0), training("4-bit", 0.5), training("sign", 0.4)], 85.0, full=True)
    assert unmet(rows) == [
        "best codec 2.50 × sooner than Horovod float32, not 4",
        "best codec 1.50 × sooner than Horovod FP16, not 2",
    ]
    elsewhere = Case("dense", "10gbit", 4)
    found = [*pair(1.0, case=elsewhere), training("4-bit", 0.5, case=elsewhere)]
    assert unmet(rows_of(found, 85.0, full=True)) == []


def test_auto_must_not_be_slower_where_computing_takes_the_time() -> None:
    for step, faults in ((1.02, 0), (1.04, 1)):
        case = Case("conv", "unshaped", 4)
        found = [*pair(1.0, case=case), training(AUTO.label, step, case=case)]
        told = unmet(rows_of(found, 85.0, full=False))
        assert len(told) == faults
        assert all("4.0% longer, not 3%" in text for text in told)


def test_a_row_that_never_got_there_has_no_time() -> None:
    found = [*pair(1.0), training("sign", 0.1, accuracy=60.0, curve=((4, 60.0),))]
    row = rows_of(found, 85.0, full=False)[2]
    assert row.reached is row.sooner is None


def test_what_is_printed_and_written(tmp_path) -> None:
    found = [*pair(1.0), training("4-bit", 0.1), training("sign", 0.1, curve=((4, 60.0),))]
    rows = rows_of(found, 85.0, full=True)
    console = Console(width=150, record=True)
    console.print(table(rows, {"dense": 85.0}, "the data"))
    text = console.export_text()
    assert "dense, 4 × 1gbit" in text
    assert "10.00 ×" in text
    assert "not reached" in text
    write_lines(found, rows, tmp_path / "train.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["training"] * 4 + ["row"] * 4
    assert lines[-1]["margin"] is None
    write_plot(found, {"dense": 85.0}, tmp_path / "train.png")
    assert (tmp_path / "train.png").read_bytes().startswith(b"\x89PNG")


def test_what_rank_0_prints_is_read_in_the_order_of_methods() -> None:
    one = {"seed": 1, "start": "s", "batch": 8, "times": [0.1], "sent": 1.0, "curve": [[1, 5.0]]}
    one |= {"planned": 0, "chosen": ""}
    told = [one | {"method": "sign"}, one | {"method": BASELINE.label}]
    found = trainings_of(CASE, told)
    assert [t.method for t in found] == [BASELINE.label, "sign"]
    assert found[0].curve == ((1, 5.0),)


def test_parts_can_be_asked_for(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    for option in ("--quick", "--model", "--ranks", "--link", "--codecs", "--seeds"):
        assert option in told
    assert {m.label for m in METHODS} >= {"8-bit", "4-bit", "top-k 1 %", "sign", "auto"}
