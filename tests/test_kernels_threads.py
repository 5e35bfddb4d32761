"""Kernels give the oracle's bytes on any number of threads, which settings and variables choose."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_cases import RNG, Array, assert_same, numbers

import gradcomp as gc
from gradcomp import _native, reference
from gradcomp.kernels import load_native
from gradcomp.reference import KernelParams

TASK = 1 << 16  # elements of a task
SIZES = [
    [TASK - 1],
    [TASK],
    [TASK + 1],
    [2 * TASK, 5, 0, TASK // 2 + 77],
    [3 * TASK + 129],
    [0, 900] * 80,
]
PARAMS = [
    KernelParams("float16"),
    KernelParams("quantize", 8, 96),
    KernelParams("quantize", 4, 256, True),
    KernelParams("quantize", 2, 2080, True),
    KernelParams("quantize", 4, 1 << 17),  # no block ends inside of a task
    KernelParams("topk", values="float16"),
    KernelParams("topk", 4, 256, True, "quantize"),
]
THREADS = (1, 2, 3, 7)


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    load_native()
    before = gc.get_num_threads()
    yield
    gc.set_num_threads(before)


def table(params: KernelParams, sizes: list[int], density: float) -> Array:
    rows = []
    for tensor, size in enumerate(sizes):
        kept = int(np.ceil(density * size)) if params.family == "topk" else 0
        rows.append([tensor, 0, size, kept, 7 + tensor])
    return np.array(rows, np.int64)


def name(params: KernelParams) -> str:
    return f"{params.family}-{params.bits}-{params.block_size}-{params.values}"


@pytest.mark.parametrize("params", PARAMS, ids=name)
def test_any_number_of_threads_gives_the_oracles_bytes(params: KernelParams) -> None:
    codec = _native.Codec(*params)
    for case, sizes in enumerate(SIZES):
        kind = ("normal", "special", "ties")[case % 3]
        gradients = [numbers(kind, n, i) for i, n in enumerate(sizes)]
        residuals = [numbers("normal", n, 99 + i) for i, n in enumerate(sizes)]
        segments = table(params, sizes, (0.01, 0.3)[case % 2])
        want, left = reference.encode(params, gradients, residuals, segments, RNG)
        both = np.concatenate([want, want])
        shapes, dtypes = [(n,) for n in sizes], ["float32"] * len(sizes)
        decoded, finite = reference.decode(params, both, 2, segments, 0.5, shapes, dtypes)
        for threads in THREADS:
            gc.set_num_threads(threads)
            what = f"{sizes[:4]} on {threads} threads"
            kept = [r.copy() for r in residuals]
            payload = np.zeros_like(want)
            _native.encode(codec, gradients, kept, segments, RNG, payload)
            assert_same(payload, want, f"payload of {what}")
            for got, wanted in zip(kept, left or [], strict=True):
                assert_same(got, wanted, f"residual of {what}")
            outputs = [np.zeros(n, np.float32) for n in sizes]
            assert _native.decode(codec, both, 2, segments, 0.5, outputs) == finite
            for got, wanted in zip(outputs, decoded, strict=True):
                assert_same(got, wanted, f"output of {what}")


@pytest.mark.parametrize("params", PARAMS[:4], ids=name)
def test_reduce_on_any_number_of_threads(params: KernelParams) -> None:
    codec = _native.Codec(*params)
    sizes = [TASK + params.block_size, 3, TASK // 2]
    segments, total = table(params, sizes, 0), sum(sizes)
    values = [numbers("normal", n, n) for n in sizes]
    payload, _ = reference.encode(params, values, None, segments, RNG)
    both, residual = np.concatenate([payload, payload]), numbers("normal", total, 5)
    want, left = reference.reduce(params, both, 2, residual.copy(), segments, RNG, 0.5)
    for threads in THREADS:
        gc.set_num_threads(threads)
        got, kept = np.zeros_like(want), residual.copy()
        _native.reduce(codec, both, 2, kept, segments, RNG, 0.5, got)
        assert_same(got, want, f"payload on {threads} threads")
        assert left is not None
        assert_same(kept, left, f"residual on {threads} threads")


@pytest.mark.parametrize("kept", [1, 2, 700, 2 * TASK, 5 * TASK - 3])
@pytest.mark.parametrize("layout", ["ties", "zeros", "scaled", "ascending", "equal"])
def test_topk_of_tensors_that_mislead_the_sample(layout: str, kept: int) -> None:
    n = 5 * TASK
    x = numbers("normal", n, 1)
    if layout == "ties":
        x = np.round(x)
    elif layout == "zeros":
        x[np.random.default_rng(1).random(n) < 0.995] = 0
    elif layout == "scaled":  # all of the largest in one thread's part
        x[3 * TASK : 3 * TASK + 3000] *= 1000
    elif layout == "ascending":
        x = np.sort(np.abs(x))
    elif layout == "equal":
        x = np.full(n, 2, np.float32)
    params = KernelParams("topk", values="float32")
    segments = np.array([[0, 0, n, kept, 1]], np.int64)
    want, left = reference.encode(params, [x], [np.zeros_like(x)], segments, RNG)
    assert left is not None
    codec = _native.Codec(*params)
    for threads in THREADS:
        gc.set_num_threads(threads)
        payload, residual = np.zeros_like(want), np.zeros_like(x)
        _native.encode(codec, [x], [residual], segments, RNG, payload)
        assert_same(payload, want, f"payload on {threads} threads")
        assert_same(residual, left[0], f"residual on {threads} threads")


def test_a_malformed_payload_is_refused_on_any_number_of_threads() -> None:
    params = KernelParams("topk", values="float16")
    sizes = [900, 4 * TASK, 3 * TASK]
    segments = table(params, sizes, 0.01)
    x = [numbers("normal", n, n) for n in sizes]
    payload, _ = reference.encode(params, x, None, segments, RNG)
    codec = _native.Codec(*params)
    first = _native.payload_size(codec, segments[:1])
    second = _native.payload_size(codec, segments[:2])
    outputs = [np.zeros(n, np.float32) for n in sizes]
    random = np.random.default_rng(3)
    for _ in range(30):
        wrong = payload.copy()
        wrong[first + random.integers(4000)] ^= 1 << random.integers(8)
        wrong[second + random.integers(4000)] ^= 1 << random.integers(8)
        said = set()
        for threads in THREADS:
            gc.set_num_threads(threads)
            try:
                finite = _native.decode(codec, wrong, 1, segments, 1.0, outputs)
                said.add(f"{finite} {b''.join(o.tobytes() for o in outputs)!r}")
            except ValueError as error:
                said.add(str(error))
        assert len(said) == 1


def test_many_callers_at_once() -> None:
    params = KernelParams("topk", values="float16")
    x = numbers("normal", 3 * TASK, 1)
    segments = table(params, [x.size], 0.01)
    want, _ = reference.encode(params, [x], None, segments, RNG)
    codec = _native.Codec(*params)
    gc.set_num_threads(3)
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(20):
            payload = np.zeros_like(want)
            _native.encode(codec, [x], None, segments, RNG, payload)
            if payload.tobytes() != want.tobytes():
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_forked_child_has_threads_of_its_own() -> None:
    x = numbers("normal", 4 * TASK, 1)
    gc.set_num_threads(3)
    codec = gc.Quantize(bits=4)
    want = codec.encode(x)  # starts the pool
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(60)  # ends a child that hangs
        os._exit(0 if codec.encode(x).tobytes() == want.tobytes() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("count", [0, -1, 1025, 2.0, "2", True, None])
def test_a_number_of_threads_out_of_range(count: object) -> None:
    before = gc.get_num_threads()
    with pytest.raises(ValueError, match=rf"{count!r}, no integer from 1 to 1024") as error:
        gc.set_num_threads(count)  # type: ignore[arg-type]
    assert "set_num_threads" in str(error.value) and gc.get_num_threads() == before


def run(code: str, **environment: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADCOMP_")} | environment
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SHOW = """
    import sys, numpy as np, gradcomp as gc
    gc.FP16().encode(np.zeros(3, np.float32))
    print(gc.get_num_threads(), "tensorflow" in sys.modules)
"""


def test_the_default_is_the_cores_that_the_process_may_run_on() -> None:
    assert run(SHOW) == f"{len(os.sched_getaffinity(0))} False"
    one = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
    assert run(one + textwrap.dedent(SHOW)) == "1 False"


def test_the_environment_variable() -> None:
    assert run(SHOW, GRADCOMP_NUM_THREADS="5") == "5 False"
    after = "import gradcomp as gc; gc.set_num_threads(3); print(gc.get_num_threads())"
    assert run(after, GRADCOMP_NUM_THREADS="5") == "3"


@pytest.mark.parametrize("value", ["0", "-1", "two", "1025", "1.5"])
def test_a_bad_environment_variable_is_named(value: str) -> None:
    code = """
        import numpy as np, gradcomp as gc
        try:
            gc.FP16().encode(np.zeros(3, np.float32))
        except gc.CodecError as error:
            print(error)
    """
    said = run(code, GRADCOMP_NUM_THREADS=value)
    shown = value if value.isdecimal() else repr(value)
    assert said == (
        f"the environment variable GRADCOMP_NUM_THREADS is {shown}, no integer from 1 to 1024: "
        "set it to one, or unset it"
    )


def test_tensorflows_own_setting_and_the_ops() -> None:
    code = """
        import tensorflow as tf, numpy as np, gradcomp as gc
        tf.config.threading.set_intra_op_parallelism_threads(3)
        x = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
        print(gc.get_num_threads())
        for codec in (gc.Quantize(bits=4), gc.TopK(density=0.01)):
            want = codec.encode(x)
            for threads in (None, 1, 7):
                if threads:
                    gc.set_num_threads(threads)
                assert codec.encode(tf.constant(x)).numpy().tobytes() == want.tobytes()
        print(gc.get_num_threads())
    """
    assert run(code, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1").split() == ["3", "7"]
