"""gradcomp.memory: GPUs by a fake of TensorFlow's calls, the CPU and searches for real."""

import csv
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from memory_layers import Exhausts

import gradcomp as gc
from gradcomp.memory import batch_size, child, gpus, trial
from gradcomp.memory.usage import MIB, DeviceMemory, MemoryReport

# Keras converts TensorFlow's tensors so.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


class FakeGpus:
    """GPUs that behave as TensorFlow's context does, with the same errors."""

    def __init__(self, count: int) -> None:
        self.physical = [f"physical GPU {index}" for index in range(count)]
        self.visible = list(self.physical)
        self.limits: dict[str, list[Any]] = {}
        self.grow: dict[str, bool] = {}
        self.initialised = False
        self.memory = {
            f"GPU:{i}": {"current": (10 + i) * MIB, "peak": 99 * MIB} for i in range(count)
        }

    def list_physical_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return self.physical

    def list_logical_devices(self, kind: str) -> list[str]:
        return self.list_physical_devices(kind)

    def get_visible_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return self.visible

    def set_visible_devices(self, devices: list[str], kind: str) -> None:
        assert kind == "GPU"
        self.visible = devices

    def get_logical_device_configuration(self, gpu: str) -> list[Any] | None:
        return self.limits.get(gpu)

    def set_logical_device_configuration(self, gpu: str, configuration: list[Any]) -> None:
        if self.initialised:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        self.limits[gpu] = configuration

    def get_memory_growth(self, gpu: str) -> bool | None:
        return self.grow.get(gpu)

    def set_memory_growth(self, gpu: str, enable: bool) -> None:
        if self.initialised:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        self.grow[gpu] = enable

    def get_memory_info(self, name: str) -> dict[str, int]:
        return self.memory[name]

    def reset_memory_stats(self, name: str) -> None:
        self.memory[name]["peak"] = self.memory[name]["current"]


EXPERIMENTAL = ("get_memory_growth", "set_memory_growth", "get_memory_info", "reset_memory_stats")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], FakeGpus]:
    def install(count: int) -> FakeGpus:
        fakes = FakeGpus(count)
        for name in [
            name for name in dir(fakes) if name.startswith(("get_", "set_", "list_", "reset_"))
        ]:
            module = tf.config.experimental if name in EXPERIMENTAL else tf.config
            monkeypatch.setattr(module, name, getattr(fakes, name))
        return fakes

    return install


# limit and growth


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


# find_batch_size: the search


@pytest.mark.parametrize(
    ("fitting", "start", "most", "tried"),
    [
        (11, 1, 1000, [1, 2, 4, 8, 16, 12, 10, 11]),
        (100, 32, 1000, [32, 64, 128, 96, 112, 104, 100, 102, 101]),
        (5, 32, 1000, [32, 16, 8, 4, 6, 5]),
        (1, 8, 1000, [8, 4, 2, 1]),
        (0, 8, 1000, [8, 4, 2, 1]),
        (10**9, 1, 20, [1, 2, 4, 8, 16, 20]),
        (17, 1, 20, [1, 2, 4, 8, 16, 20, 18, 17]),
        (10**9, 7, 7, [7]),
    ],
)
def test_doubles_then_bisects(fitting: int, start: int, most: int, tried: list[int]) -> None:
    calls: list[int] = []

    def fits(size: int) -> bool:
        calls.append(size)
        return size <= fitting

    assert batch_size.largest(fits, start, most) == min(fitting, most)
    assert calls == tried


# find_batch_size: processes, with a stand-in for the one that trains


STAND_IN = """
import os, sys
folder, tried = sys.argv[1], 0
print(os.getpid(), file=open(folder + "/pids", "a"))
print("a warning", file=sys.stderr, flush=True)
for size in map(int, sys.stdin):
    {body}
    tried += 1
    print("fits", flush=True)
"""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Any]:
    def install(body: str) -> batch_size.Trials:
        monkeypatch.setattr(batch_size, "_CHILD", STAND_IN.format(body=body))
        return batch_size.Trials(tmp_path)

    return install


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


@pytest.mark.parametrize(
    "body",
    [
        "if size > 11: print('full'); break",
        "if size > 11: os.kill(os.getpid(), 9)",
        "if size > 11: print('std::bad_alloc', file=sys.stderr, flush=True); os.abort()",
    ],
)
def test_out_of_memory_is_a_size_that_does_not_fit(
    stand_in: Callable[[str], Any], tmp_path: Path, body: str
) -> None:
    with stand_in(body) as trials:
        assert batch_size.largest(trials.fits, 1, 1000) == 11
    # 1 to 16, then 16, 12 and 10 to 11 on their own: successes share a process.
    started = pids(tmp_path)
    assert len(started) == 4
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_earlier_sizes_left_behind_does_not_decide(
    stand_in: Callable[[str], Any], tmp_path: Path
) -> None:
    with stand_in("if size > 11 or tried == 2: print('full'); break") as trials:
        assert batch_size.largest(trials.fits, 1, 1000) == 11


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("if size == 4: raise ValueError('no such class')", r"size 4 failed.*exit code 1"),
        ("if size == 4: os.abort()", r"size 4 failed.*signal SIGABRT"),
        ("if size == 4: os.kill(os.getpid(), 11)", r"size 4 failed.*signal SIGSEGV"),
        ("if size == 4: sys.exit(0)", r"size 4 failed.*exit code 0"),
    ],
)
def test_another_failure_raises(
    stand_in: Callable[[str], Any], tmp_path: Path, body: str, told: str
) -> None:
    with stand_in(body) as trials, pytest.raises(gc.BatchSizeError, match=told) as raised:
        batch_size.largest(trials.fits, 1, 1000)
    assert ("no such class" if "class" in body else "a warning") in str(raised.value)


def test_a_subprocess_that_cannot_start_raises(stand_in: Callable[[str], Any]) -> None:
    with stand_in("if") as trials, pytest.raises(gc.BatchSizeError, match="SyntaxError"):
        trials.fits(1)


def test_an_interrupted_search_leaves_no_process(
    stand_in: Callable[[str], Any], tmp_path: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        body = "import time; os.kill(os.getppid(), 10); time.sleep(600)"
        with pytest.raises(KeyboardInterrupt), stand_in(body) as trials:
            trials.fits(1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    for pid in pids(tmp_path):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_not_even_one_fits(stand_in: Callable[[str], Any], fake: Callable[[int], FakeGpus]) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    stand_in("print('full'); break")
    with pytest.raises(gc.BatchSizeError, match="a batch of 1 fits into 10 MiB, where"):
        gc.memory.find_batch_size(model, np.ones((1, 2)), start=8, memory_limit=10)
    fake(1)
    with pytest.raises(gc.BatchSizeError, match=r"on GPU 0; .* `gc\.memory\.growth\(True\)`"):
        gc.memory.find_batch_size(model, np.ones((1, 2)))


# find_batch_size: one trial


class Spy:
    compiled = True

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def train_on_batch(self, x: Any, y: Any) -> None:
        self.calls.append(("train", (x, y)))

    def predict_on_batch(self, x: Any) -> None:
        self.calls.append(("predict", x))


def test_examples_are_repeated_to_fill_a_batch() -> None:
    spy = Spy()
    x = {"a": np.arange(6).reshape(3, 2), "b": tf.constant([1, 2, 3])}
    told = trial.describe(spy, x, np.arange(100), None)
    child.step(spy, told, 4)
    child.step(spy, told, 40)
    (_, (filled, y)), (_, (_, large)) = spy.calls
    assert filled["a"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert filled["b"].tolist() == [1, 2, 3, 1]
    assert y.tolist() == [0, 1, 2, 3]
    assert large.tolist() == [*range(32), *range(8)]


def test_predicts_with_a_model_that_is_not_compiled() -> None:
    spy = Spy()
    spy.compiled = False
    child.step(spy, trial.describe(spy, np.zeros((1, 2)), None, None), 3)
    [(what, x)] = spy.calls
    assert what == "predict"
    assert x.shape == (3, 2)


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        (np.zeros((0, 3)), None, r"x must be .* at least one row, got shape \(0, 3\)"),
        (np.float32(1), None, r"x must be .* got shape \(\)"),
        ([1, 2], None, "x must be .* got 1"),
        (np.zeros((1, 3)), np.zeros(0), r"y must be .* got shape \(0,\)"),
    ],
)
def test_examples_without_rows_are_refused(x: Any, y: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        gc.memory.find_batch_size(Spy(), x, y)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"start": 0}, "got start=0"),
        ({"start": 9, "most": 8}, "got start=9 and most=8"),
        ({"memory_limit": 0}, "memory_limit is at least 1 MiB, or None, got 0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        gc.memory.find_batch_size(Spy(), np.zeros((1, 2)), **options)


def test_a_trial_gets_the_callers_first_visible_gpu(fake: Callable[[int], FakeGpus]) -> None:
    fakes = fake(3)
    fakes.visible = fakes.physical[1:]
    examples = np.zeros((1, 2))
    plain = trial.describe(Spy(), examples, None, None)
    assert (plain.gpu, plain.growth, plain.limit_mib) == (1, False, None)
    child.use_gpu(plain)
    assert fakes.visible == ["physical GPU 1"]
    assert not fakes.grow
    assert not fakes.limits

    gc.memory.growth(True)
    growing = trial.describe(Spy(), examples, None, None)
    fakes.grow.clear()
    child.use_gpu(growing)
    assert fakes.grow == {"physical GPU 1": True}

    # A limit takes the place of growth.
    gc.memory.growth(True)
    limited = trial.describe(Spy(), examples, None, 2048)
    fakes.grow.clear()
    child.use_gpu(limited)
    assert gpus.limit_of("physical GPU 1") == 2048
    assert not fakes.grow


def test_a_trial_gets_the_callers_limit(fake: Callable[[int], FakeGpus]) -> None:
    fake(2)
    gc.memory.limit(0, 4096)
    assert trial.describe(Spy(), np.zeros((1, 2)), None, None).limit_mib == 4096
    assert trial.describe(Spy(), np.zeros((1, 2)), None, 512).limit_mib == 512


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), True),
        (MemoryError("Unable to allocate 8.00 EiB"), True),
        (tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: out of memory"), True),
        (tf.errors.InternalError(None, None, "CUBLAS_STATUS_ALLOC_FAILED"), True),
        (tf.errors.InternalError(None, None, "Blas GEMM launch failed"), False),
        (tf.errors.InvalidArgumentError(None, None, "shapes differ"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_are_for_want_of_memory(error: Exception, is_memory: bool) -> None:
    assert child.exhausted(error) is is_memory


# find_batch_size: for real


def test_a_real_search_finds_the_batch_that_fits_the_limit() -> None:
    # Tries 2, 4 and 3. A row takes 256 MiB, and the process with TensorFlow 650, give or take 150.
    model = keras.Sequential(
        [keras.Input((4096,)), keras.layers.RepeatVector(16384), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    weights = model.get_weights()
    before = cpu().peak
    x, y = np.ones((2, 4096), np.float32), np.ones((2, 16384, 1), np.float32)
    assert gc.memory.find_batch_size(model, x, y, start=2, most=8, memory_limit=1320) in (2, 3)
    assert cpu().peak - before < 100 * MIB
    assert all(map(np.array_equal, weights, model.get_weights()))


def test_a_real_search_survives_tensorflows_out_of_memory() -> None:
    layers = [keras.Input((2,)), Exhausts(most=1), keras.layers.Lambda(lambda x: 2 * x)]
    model = keras.Sequential(layers)
    assert gc.memory.find_batch_size(model, tf.ones((1, 2)), start=2, most=4) == 1


def test_a_class_of_ones_own_that_is_not_registered_is_told() -> None:
    class Unregistered(keras.layers.Layer):
        pass

    model = keras.Sequential([keras.Input((2,)), Unregistered()])
    with pytest.raises(gc.BatchSizeError, match=r"(?s)not for want of memory.*Unregistered"):
        gc.memory.find_batch_size(model, np.ones((1, 2)))
