"""The comparison of all-reduces: its models, its verdicts and what it prints."""

import json
import math
import threading
from collections import Counter

import keras
import pytest
import tensorflow as tf
from rich.console import Console

import gradcomp as gc
from bench.allreduce.kernels import kernel_seconds
from bench.allreduce.link import goodput
from bench.allreduce.models import MODELS
from bench.allreduce.predicted import predicted
from bench.allreduce.report import table, write_lines, write_plot
from bench.allreduce.rows import ATTAINED, METHODS, Case, Row, judge
from gradcomp.models import numel

CASE = Case("1gbit", 4, "resnet50")


def row(method: str, time: float, sent: float = 8.5e6, **other) -> Row:
    options = {"planned": 0, "goodput": 1e8, "kernels": 0.0, "case": CASE} | other
    return Row(method=method, times=(time,) * 3, sent=sent, **options)


def faults(*rows: Row) -> list[tuple[str, ...]]:
    return [verdict.faults for verdict in judge([row("Horovod float32", 1.0), *rows])[1:]]


def test_resnet50_is_kerass() -> None:
    model = keras.applications.ResNet50(weights=None)
    theirs = Counter(tuple(v.shape) for v in model.trainable_variables)
    assert Counter(MODELS["resnet50"]()) == theirs


def test_models_have_the_published_sizes() -> None:
    sizes = {name: numel(shapes()) for name, shapes in MODELS.items()}
    assert sizes["bert-base"] == 109_482_240
    assert sizes["one-large"] == 100_000_000
    assert len(MODELS["small"]()) == 300


def test_a_good_row_has_no_fault() -> None:
    assert faults(row("4-bit", 0.1, planned=8_500_000)) == [()]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (row("4-bit", 0.12, planned=8_500_000), "0.71 of attainable, not 0.8"),
        (row("4-bit", 0.1, planned=4_250_000), "2.00 of the planned bytes"),
        (row("top-k 1 %", 0.1, planned=8_500_000), "10.0 × Horovod float32, not 14"),
    ],
)
def test_a_bad_row_says_what_is_missed(bad: Row, told: str) -> None:
    assert faults(bad) == [(told,)]


def test_small_tensors_may_take_little_longer_than_horovods() -> None:
    many = Case("unshaped", 2, "small")
    rows = [row("Horovod float32", 1.0, case=many), row("none", 1.2, sent=1.1e8, case=many)]
    assert [verdict.faults for verdict in judge(rows)] == [
        (),
        ("1.20 × Horovod float32's time, not 1.1",),
    ]


def test_a_prediction_adds_link_latency_and_kernels(monkeypatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    told = {"goodput": 1e8, "latency": 1e-3, "kernels": {"8-bit": 0.05}}
    case = Case("1gbit", 4, "one-large")
    # One bucket: 2 · 3 messages in a ring and 2 · 3/4 of the bytes, on two cores for four ranks.
    dense = 6e-3 + 1.5 * 4e8 / 1e8
    payload = gc.Quantize(bits=8).payload_size(100_000_000)
    assert predicted(case, "Horovod float32", told) == 0.0
    assert predicted(case, "none", told) == pytest.approx(dense)
    assert predicted(case, "8-bit", told) == pytest.approx(
        6e-3 + 1.5 * payload / 1e8 + 0.1, rel=1e-6
    )


def test_speed_is_asked_where_it_was_promised_only() -> None:
    elsewhere = Case("10gbit", 4, "resnet50")
    rows = [
        row("Horovod float32", 0.1, case=elsewhere),
        row("top-k 1 %", 0.1, planned=8_500_000, case=elsewhere),
    ]
    assert [verdict.faults for verdict in judge(rows)] == [(), ()]


def test_kernels_bound_what_is_attainable_on_shared_cores(monkeypatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    slow = row("4-bit", 0.5, kernels=0.2)
    assert slow.attainable == pytest.approx(0.4)
    assert slow.attained == pytest.approx(0.8)
    assert ATTAINED == 0.8


def test_the_spread_is_that_of_the_quartiles() -> None:
    times = (1.0, 1.1, 1.2, 1.3, 9.0)
    assert Row(CASE, "4-bit", times, 1.0, 1, 1.0, 0.0).spread == pytest.approx(0.1 / 1.2)


def test_what_is_printed_and_written(tmp_path) -> None:
    rows = [row("Horovod float32", 1.0), row("4-bit", 0.1, planned=8_500_000, kernels=0.01)]
    verdicts = judge(rows)
    console = Console(width=130, record=True)
    console.print(table(CASE, rows, verdicts))
    text = console.export_text()
    assert "resnet50, 4 hosts, 1gbit (goodput 0.8 Gbit/s)" in text
    assert "100.0 ms" in text
    assert "10.00 ×" in text
    write_lines(rows, verdicts, tmp_path / "rows.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line["speedup"] for line in lines] == [1.0, 10.0]
    write_plot(rows, verdicts, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_goodput_is_that_of_the_slowest_link() -> None:
    board: list = [[None, None], [None, None]]
    barrier = threading.Barrier(2)
    told = []

    def rank(number: int) -> None:
        calls = iter(board)

        def gather(value):
            slots = next(calls)
            slots[number] = value
            barrier.wait()
            return slots

        told.append(goodput(number, gather, seconds=0.1))

    ranks = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    assert told == [min(board[1])] * 2
    assert told[0] > 1e6


@pytest.mark.parametrize("method", [m for m in METHODS if m.spec], ids=lambda m: m.label)
@pytest.mark.parametrize("ranks", [2, 4])
def test_kernels_of_every_method_are_timed_alone(method, ranks) -> None:
    variables = [tf.Variable(tf.zeros(shape)) for shape in ((300, 40), (7,), (64, 65))]
    plan = gc.Policy(method.spec).plan(variables, world_size=ranks)
    seconds = kernel_seconds(plan)
    assert math.isfinite(seconds)
    assert (seconds > 0) == any(bucket.codec for bucket in plan.buckets)
