"""The demo: its data, its bounds and exit status, its files, and one real training."""

from __future__ import annotations

import dataclasses
import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from bench.demo import __main__ as demo
from bench.demo import data, launch
from bench.demo.bounds import Row, judge, make_row
from bench.demo.data import Images
from bench.demo.launch import Outcome, RunError
from bench.demo.plot import bytes_text, write_plot
from bench.demo.report import last_line, table
from bench.demo.runs import BASELINE, RUNS, TOPK, WITHOUT_FEEDBACK, Run

RAW = 4_000_000
STEPS = 100
MIN_HARM = 1.5


def outcome(accuracy: float, sent: int = RAW, share: float = 0.99) -> Outcome:
    result = {
        "steps": STEPS,
        "raw_bytes": RAW * STEPS,
        "sent_bytes": sent * STEPS,
        "compressed_numel": int(share * 1000),
        "total_numel": 1000,
        "step_seconds": 0.0125,
        "digest": "equal",
    }
    epochs = [
        {"accuracy": accuracy - 5, "sent_bytes": sent * STEPS // 2},
        {"accuracy": accuracy, "sent_bytes": sent * STEPS},
    ]
    return Outcome(epochs, [result, dict(result)])


GOOD = {
    BASELINE: outcome(90.0, share=0.0),
    RUNS[1]: outcome(90.1, RAW // 2),
    RUNS[2]: outcome(89.9, RAW // 4),
    RUNS[3]: outcome(89.5, RAW // 8),
    TOPK: outcome(89.0, RAW // 100),
    WITHOUT_FEEDBACK: outcome(87.5, RAW // 100),
}


def rows(**changes: Outcome) -> list[Row]:
    """The good outcomes, some of them changed, by label."""
    return [make_row(run, changes.get(run.label, GOOD[run]), "a data set") for run in RUNS]


def test_a_row_is_what_was_measured() -> None:
    row = rows()[4]
    assert (row.codec, row.compression, row.error_feedback) == (
        "top-k 1 %",
        "topk:density=0.01",
        True,
    )
    assert (row.raw_bytes_per_step, row.sent_bytes_per_step) == (RAW, RAW / 100)
    assert (row.compression_ratio, row.compressed_share, row.step_ms) == (100, 0.99, 12.5)
    assert row.accuracy == 89.0
    assert row.curve == [(RAW // 2, 84.0), (RAW, 89.0)]


def test_every_run_is_in_its_bound_exactly_on_it() -> None:
    assert [verdict.kept for verdict in judge(rows(), MIN_HARM)] == [True] * len(RUNS)


@pytest.mark.parametrize(
    ("run", "bad"),
    [
        (BASELINE, outcome(87.99)),
        (RUNS[1], outcome(88.99)),
        (RUNS[3], outcome(88.99)),
        (TOPK, outcome(88.99)),
        (TOPK, outcome(90.0, share=0.949)),
        (WITHOUT_FEEDBACK, outcome(87.51)),
    ],
)
def test_a_run_out_of_its_bound_is_found(run: Run, bad: Outcome) -> None:
    changed = rows(**{run.label: bad})
    verdicts = judge(changed, MIN_HARM)
    assert run.label in {
        row.codec for row, verdict in zip(changed, verdicts, strict=True) if not verdict.kept
    }
    line = last_line(changed, verdicts, [Path("a.png")])
    assert "NOT within bound" in line
    assert run.label in line


def test_ranks_that_ended_apart_are_found() -> None:
    apart = outcome(90.0)
    apart.results[1]["digest"] = "other"
    verdict = judge(rows(FP16=apart), MIN_HARM)[1]
    assert verdict.faults == ("the ranks ended with different weights",)


def test_table_shows_every_row_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    measured = rows()
    Console(width=demo._MIN_WIDTH).print(table(measured, judge(measured, MIN_HARM)))
    printed = capsys.readouterr().out
    for row in measured:
        assert row.codec in printed
    assert "40,000" in printed
    assert "100.0 ×" in printed
    assert "…" not in printed


@pytest.mark.parametrize(
    ("value", "text"), [(999, "999 B"), (1e4, "10 kB"), (2.5e6, "2.5 MB"), (1.234e9, "1.23 GB")]
)
def test_bytes_are_written_for_readers(value: float, text: str) -> None:
    assert bytes_text(value) == text


def test_plot_is_a_picture_of_every_row(tmp_path: Path) -> None:
    write_plot(rows(), tmp_path / "demo.png")
    content = (tmp_path / "demo.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 1000
    assert height > 500


def fake_trainings(monkeypatch: pytest.MonkeyPatch, outcomes: dict[Run, Outcome]) -> None:
    monkeypatch.setattr(demo, "train", lambda run, *_: outcomes[run])


def test_demo_writes_its_files_and_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_trainings(monkeypatch, GOOD)
    assert demo.main(["--data", "digits", "--out", str(tmp_path / "new")]) == 0
    objects = json.loads((tmp_path / "new" / "demo.json").read_text())
    assert [value["codec"] for value in objects] == [run.label for run in RUNS]
    assert all(value["within_bound"] for value in objects)
    assert {value["data"] for value in objects} == {"digits (scikit-learn)"}
    assert (tmp_path / "new" / "demo.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "Data: digits (scikit-learn)" in printed
    last = printed.splitlines()[-1]
    assert "demo.png" in last
    assert "demo.json" in last
    assert "Every run is within its bound" in last


def test_demo_fails_when_a_run_is_out_of_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_trainings(monkeypatch, {**GOOD, TOPK: outcome(88.0, RAW // 100)})
    assert demo.main(["--data", "digits", "--out", str(tmp_path)]) == 1
    objects = json.loads((tmp_path / "demo.json").read_text())
    assert [value["within_bound"] for value in objects] == [True, True, True, True, False, True]
    assert "NOT within bound: top-k 1 % (accuracy 88.00 %" in capsys.readouterr().out


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes()))


def debian_folder(folder: Path) -> Path:
    random = np.random.default_rng(0)
    for part, count in (("train", 7), ("t10k", 3)):
        pixels = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        pixels[0, 0, 0] = 255
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", pixels)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8))
    return folder


def check_images(images: Images, shape: tuple[int, ...]) -> None:
    for x, y in ((images.x_train, images.y_train), (images.x_test, images.y_test)):
        assert x.shape == (len(y), *shape)
        assert (x.dtype.name, y.dtype.name) == ("float32", "int32")
        assert x.min() >= 0
        assert x.max() == 1
        assert set(y.tolist()) <= set(range(10))


def test_debian_files_are_read(tmp_path: Path) -> None:
    images = data.debian_fashion_mnist(debian_folder(tmp_path))
    check_images(images, (28, 28, 1))
    assert images.y_train.tolist() == list(range(7))
    assert images.y_test.tolist() == list(range(3))


@pytest.mark.parametrize(
    "damage", [b"", b"\x00\x00\x0d\x01", b"\x00\x00\x08\x01\x00\x00\x00\x05ab"]
)
def test_damaged_files_are_refused(damage: bytes, tmp_path: Path) -> None:
    path = debian_folder(tmp_path) / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(damage))
    with pytest.raises(ValueError, match=path.name):
        data.debian_fashion_mnist(tmp_path)


def test_digits_are_the_same_at_every_call() -> None:
    first, second = data.sklearn_digits(), data.sklearn_digits()
    check_images(first, (28, 28, 1))
    assert len(first.y_train) + len(first.y_test) == 1797
    np.testing.assert_array_equal(first.x_train, second.x_train)


def unavailable() -> Images:
    raise OSError("not here")


def test_first_available_source_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(data.SOURCES, "debian", unavailable)
    monkeypatch.setitem(data.SOURCES, "keras", unavailable)
    assert data.find_source() == "digits"
    monkeypatch.setitem(data.SOURCES, "keras", data.sklearn_digits)
    assert data.find_source() == "keras"


def test_missing_package_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="train-images"):
        data.debian_fashion_mnist(tmp_path / "nothing")


def test_failed_download_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    def fail() -> None:
        raise Exception("URL fetch failure")

    monkeypatch.setattr(keras.datasets.fashion_mnist, "load_data", fail)
    with pytest.raises(OSError, match="URL fetch failure"):
        data.keras_fashion_mnist()


def test_two_real_processes_train() -> None:
    records: list[str] = []
    measured = launch.train(TOPK, "digits", 2, lambda record: records.append(record["kind"]))
    row = make_row(TOPK, measured, "digits")
    steps = 2 * (1000 // 2 // 32)
    assert row.steps == steps
    assert row.ranks_agree
    assert row.raw_bytes_per_step == 4 * measured.results[0]["total_numel"]
    assert row.sent_bytes_per_step < row.raw_bytes_per_step / 10
    assert row.compressed_share > 0.95
    assert records[-1] == "result"
    assert records.count("epoch") == 2
    assert row.curve[-1][0] == measured.results[0]["sent_bytes"]


def test_a_failing_rank_shows_its_error() -> None:
    wrong = dataclasses.replace(TOPK, compression="no-such-codec")
    with pytest.raises(RunError, match="no-such-codec"):
        launch.train(wrong, "digits", 1)
