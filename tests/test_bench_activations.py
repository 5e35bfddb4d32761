"""The comparison of ways to keep activations: its verdicts, and one small run of each kind."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import keras
import pytest
from rich.console import Console

from bench.activations import __main__ as bench
from bench.activations import accuracy
from bench.activations.accuracy import Training, compare
from bench.activations.methods import AUTO, METHODS, PLAIN, RECOMPUTE_GRAD
from bench.activations.models import FULL
from bench.activations.report import table, verdicts_table, write_plot
from bench.activations.rows import TARGETS, Row, judge, make_row, wrong

PLAIN_CHECKED = {"peak": 2e9, "error": 0.0}


def row(method: str, peak: float = 1e9, **changes: Any) -> Row:
    checked = {"peak": peak, "error": 1e-5} | changes
    rounds, plain = [[3.0, 5.0, 4.0], [3.0, 3.0, 3.0]], [[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]]
    return make_row(
        changes.get("model", "transformer"), method, checked, PLAIN_CHECKED, rounds, plain
    )


def test_a_row_is_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    measured = row("8-bit")
    assert (measured.peak_mb, measured.memory, measured.seconds) == (1000, 0.5, 3)
    assert (measured.time, measured.time_low, measured.time_high) == (1.5, 1, 2)
    rows = [*(row(name) for name in METHODS), Row("transformer", "other", failure="an error")]
    Console(width=bench._WIDTH).print(table("transformer", rows, 0.5))
    text = capsys.readouterr().out
    assert all(name in text for name in METHODS)
    assert "fails" in text


def test_targets_are_judged_by_their_rows(tmp_path: Path, capsys: Any) -> None:
    rows = [row(RECOMPUTE_GRAD, 3e8), row("FP16", 6e8), row("8-bit + recompute", 1e8)]
    rows += [row("FP16 + recompute", 2e8, model="mlp"), row(RECOMPUTE_GRAD, 4e8, model="mlp")]
    found = {str(v.target): (v.figure, v.reached) for v in judge(rows)}
    assert len(found) == len(TARGETS)
    assert found["transformer, FP16: memory ≤ 0.3"] == (0.3, True)
    assert found["transformer, FP16: time ≤ 1.12"] == (1.5, False)
    assert found["transformer, 8-bit + recompute: time ≤ 1.05 × tf.recompute_grad"] == (1, True)
    assert found["mlp, FP16 + recompute: memory ≤ 0.7 × tf.recompute_grad"] == (0.5, True)
    assert found["transformer, 4-bit: error ≤ 0.04"] == (None, None)
    Console(width=bench._WIDTH).print(verdicts_table(judge(rows)))
    text = capsys.readouterr().out
    assert text.count("missed") == 2
    assert "not measured" in text
    write_plot(rows, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("method", "error", "expected"),
    [
        (PLAIN, 0.0, False),
        (PLAIN, 0.1, True),
        ("8-bit", 1e-2, False),
        ("8-bit", 0.5, True),
        (AUTO + "FP16", 0.1, True),
        ("FP16 + recompute", math.nan, True),
        (RECOMPUTE_GRAD, 0.3, False),
    ],
)
def test_wrong_gradients_are_found(method: str, error: float, expected: bool) -> None:
    assert wrong(method, error) == expected


def test_the_network_has_resnet50s_shape() -> None:
    ours = [v for block in FULL["resnet50"].blocks() for v in block.trainable_variables]
    theirs = keras.applications.ResNet50(weights=None).variables

    def kernels(variables: Any) -> list[tuple[int, ...]]:
        return sorted(tuple(v.shape) for v in variables if len(v.shape) == 4)

    assert kernels(ours) == kernels(theirs)


def training(codec: str, seed: int, score: float, start: str = "") -> Training:
    return Training("text", codec, seed, score, start or str(seed), 100)


def test_accuracies_are_compared_in_pairs() -> None:
    trainings = [training("none", 2, -1.5), training("FP16", 2, -1.53)]
    trainings += [training("FP16", 1, -1.62), training("none", 1, -1.6)]
    found = compare(trainings, "text", "FP16")
    assert found.plain == pytest.approx(-1.55)
    assert found.differences == pytest.approx((-0.02, -0.03))
    assert not found.kept
    with pytest.raises(ValueError, match="seeds"):
        compare(trainings[:3], "text", "FP16")
    with pytest.raises(ValueError, match="begun otherwise"):
        compare([training("none", 1, -1), training("FP16", 1, -1, "x")], "text", "FP16")


def test_methods_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods = ['RematScope("full")', RECOMPUTE_GRAD, AUTO + "8-bit"]
    arguments = ["--quick", "--out", str(tmp_path), "--models", "mlp", "--methods", *methods]
    assert bench.main(arguments) == 0
    rows = [json.loads(line) for line in (tmp_path / "activations.jsonl").read_text().splitlines()]
    remat, again, packed = rows
    assert "Error" in remat["failure"]
    assert again["error"] < 1e-5  # there is no dropout
    assert 1e-5 < packed["error"] < 0.05
    assert 0 < packed["memory"] < 1.5
    assert (tmp_path / "activations.png").exists()
    assert "Every gradient of ours is right" in capsys.readouterr().out


def test_a_method_with_wrong_gradients_reaches_nothing(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    class Steps:
        def __init__(self, model: str, method: str, quick: bool, folder: str) -> None:
            self.answer = lambda: {"peak": 1e8, "error": 0.7 if method == "FP16" else 0.0}

        def __enter__(self) -> Steps:
            return self

        def __exit__(self, *_: object) -> None: ...

        def ask(self, steps: int) -> dict[str, Any]:
            return {"seconds": [1.0] * steps}

    monkeypatch.setattr(bench, "_child", Steps)
    names = ["--models", "transformer", "--methods", PLAIN, "FP16", "8-bit"]
    assert bench.main([*names, "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "transformer, FP16: gradients off by 7.0e-01" in told
    assert "WRONG gradients: transformer, FP16." in told
    (line,) = [line for line in told.splitlines() if "transformer, FP16: memory" in line]
    assert "not measured" in line


def test_trainings_are_compared(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(accuracy, "CODECS", {"8-bit": "quantize:bits=8"})
    assert bench.main(["--accuracy", "--quick", "--out", str(tmp_path)]) == 0
    lines = [
        json.loads(line)
        for line in (tmp_path / "activations-accuracy.jsonl").read_text().splitlines()
    ]
    assert [(t["task"], t["codec"]) for t in lines] == [
        ("images", "none"),
        ("images", "8-bit"),
        ("text", "none"),
        ("text", "8-bit"),
    ]
    assert lines[0]["score"] != lines[1]["score"]  # something was packed
    assert all(abs(a["score"] - b["score"]) < 5 for a, b in (lines[:2], lines[2:]))
    assert "Too short to judge" in capsys.readouterr().out
