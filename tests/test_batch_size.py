"""find_batch_size: the search, its subprocesses, and real ones that run out of memory."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from fake_gpus import FakeGpus, install
from memory_layers import Exhausts

import gradcomp as gc
from gradcomp.memory import batch_size, child, gpus, trial
from gradcomp.memory.usage import MIB

# Keras converts TensorFlow's tensors so.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], FakeGpus]:
    return partial(install, monkeypatch)


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
    before = gc.memory.report().devices[0].peak
    x, y = np.ones((2, 4096), np.float32), np.ones((2, 16384, 1), np.float32)
    assert gc.memory.find_batch_size(model, x, y, start=2, most=8, memory_limit=1320) in (2, 3)
    assert gc.memory.report().devices[0].peak - before < 100 * MIB
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
