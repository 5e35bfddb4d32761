"""gradcomp.memory: limits, growth, the report and its callback; GPUs by a fake."""

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from fake_gpus import FakeGpus, install

import gradcomp as gc
from gradcomp.memory.usage import MIB, DeviceMemory, MemoryReport

# Keras converts TensorFlow's tensors so.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], FakeGpus]:
    return partial(install, monkeypatch)


def test_limit_gives_one_gpu_one_logical_device(fake: Callable[[int], FakeGpus]) -> None:
    fakes = fake(2)
    gc.memory.limit(1, 1024)
    assert fakes.limits == {"physical GPU 1": [tf.config.LogicalDeviceConfiguration(1024)]}


def test_growth_is_set_on_every_gpu(fake: Callable[[int], FakeGpus]) -> None:
    fakes = fake(2)
    gc.memory.growth(True)
    assert fakes.grow == {"physical GPU 0": True, "physical GPU 1": True}
    gc.memory.growth(False)
    assert fakes.grow == {"physical GPU 0": False, "physical GPU 1": False}


@pytest.mark.parametrize(
    ("count", "gpu", "told"),
    [
        (0, 0, "no GPU 0: TensorFlow sees none"),
        (1, 1, "no GPU 1: .* one, GPU 0"),
        (4, -1, "no GPU -1: .* 4, 0 to 3"),
    ],
)
def test_limit_names_the_gpu_that_is_not_there(
    fake: Callable[[int], FakeGpus], count: int, gpu: int, told: str
) -> None:
    fake(count)
    with pytest.raises(ValueError, match=told):
        gc.memory.limit(gpu, 1024)


def test_limit_refuses_less_than_a_mebibyte(fake: Callable[[int], FakeGpus]) -> None:
    fake(1)
    with pytest.raises(ValueError, match="at least 1 MiB, got 0"):
        gc.memory.limit(0, 0)


def test_too_late_says_where_the_call_belongs(fake: Callable[[int], FakeGpus]) -> None:
    fakes = fake(1)
    fakes.initialised = True
    with pytest.raises(RuntimeError, match=r"`gc\.memory\.limit\(0, 512\)` at the start"):
        gc.memory.limit(0, 512)
    with pytest.raises(RuntimeError, match=r"`gc\.memory\.growth\(True\)` at the start"):
        gc.memory.growth(True)


def test_growth_and_a_limit_exclude_each_other(fake: Callable[[int], FakeGpus]) -> None:
    fakes = fake(2)
    gc.memory.growth(True)
    with pytest.raises(ValueError, match="GPU 1 has growth"):
        gc.memory.limit(1, 512)
    gc.memory.growth(False)
    gc.memory.limit(1, 512)
    with pytest.raises(ValueError, match="GPU 1 has a limit"):
        gc.memory.growth(True)
    assert fakes.grow["physical GPU 0"] is False


def test_without_a_gpu_growth_does_nothing_and_limit_raises() -> None:
    gc.memory.growth(True)
    with pytest.raises(ValueError, match="TensorFlow sees none"):
        gc.memory.limit(0, 1024)


# report and MemoryLogger


def cpu() -> DeviceMemory:
    return gc.memory.report().devices[0]


def test_report_follows_the_process() -> None:
    before = cpu()
    size = 200 * MIB + before.peak - before.current
    array = np.ones(size, np.uint8)
    during = cpu()
    assert during.current - before.current > size - 10 * MIB
    assert during.peak - before.peak > 190 * MIB
    del array
    after = cpu()
    assert after.current < during.current - size + 10 * MIB
    # The kernel counts to within some pages while memory is in use.
    assert after.peak > during.peak - MIB


def test_report_has_every_gpu_and_prints_a_table(fake: Callable[[int], FakeGpus]) -> None:
    fake(2)
    report = gc.memory.report()
    assert report.devices[1:] == (
        DeviceMemory("GPU:0", 10 * MIB, 99 * MIB),
        DeviceMemory("GPU:1", 11 * MIB, 99 * MIB),
    )
    printed = str(MemoryReport(report.devices)).splitlines()
    assert [line for line in printed if "GPU:1" in line and "11.0" in line and "99.0" in line]
    assert [line for line in printed if "CPU" in line]


def test_the_logger_shows_in_history_csv_and_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board: dict[str, list[float]] = {}

    def scalar(name: str, value: float, **_: object) -> None:
        board.setdefault(name, []).append(value)

    # `tf.summary.scalar` needs the package tensorboard.
    summary = SimpleNamespace(
        create_file_writer=tf.summary.create_file_writer,
        record_if=tf.summary.record_if,
        scalar=scalar,
    )
    monkeypatch.setattr(keras.callbacks.TensorBoard, "summary", summary)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [
        gc.memory.MemoryLogger(),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TensorBoard(tmp_path / "board", write_graph=False),
    ]
    history = model.fit(
        np.zeros((4, 2)), np.zeros((4, 1)), epochs=2, verbose=0, callbacks=callbacks
    )
    peaks = history.history["cpu_peak_mib"]
    assert len(peaks) == 2
    assert 100 < history.history["cpu_current_mib"][0] <= peaks[0] + 1
    assert peaks[-1] <= cpu().peak / MIB
    with (tmp_path / "log.csv").open() as file:
        assert [float(row["cpu_peak_mib"]) for row in csv.DictReader(file)] == peaks
    assert board["epoch_cpu_peak_mib"] == peaks
    assert board["epoch_cpu_current_mib"] == history.history["cpu_current_mib"]


def test_the_logger_starts_a_gpus_peak_anew_each_epoch(fake: Callable[[int], FakeGpus]) -> None:
    fakes = fake(2)
    logger = gc.memory.MemoryLogger()
    logger.on_epoch_begin(0)
    fakes.memory["GPU:1"]["peak"] = 50 * MIB
    logs: dict[str, float] = {"loss": 1.0}
    logger.on_epoch_end(0, logs)
    logger.on_epoch_end(0, None)
    assert {name: value for name, value in logs.items() if "cpu" not in name} == {
        "loss": 1.0,
        "gpu_0_current_mib": 10.0,
        "gpu_0_peak_mib": 10.0,
        "gpu_1_current_mib": 11.0,
        "gpu_1_peak_mib": 50.0,
    }
