"""Which kernels a call takes, when libraries are loaded, and what is said where they cannot be."""

import subprocess
import sys
import threading
import time
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from buckets import (
    ALL_PARAMS,
    DTYPES,
    REDUCIBLE,
    SHAPES,
    bits_of,
    name_of,
    segments_of,
    values_of,
)

from gradcomp import CodecError, MissingDependencyError, kernels, reference
from gradcomp.kernels import KernelParams, libraries

RNG = (11, 12, 1, 0)
ROW = np.array([[0, 0, 5, 0, 0]], np.int64)
INSTALL = r"pip install 'tensorflow>=2\.15,<2\.22'"
REINSTALL = "pip install --force-reinstall"


def run_python(*lines: str) -> str:
    """The output of a Python process of its own."""
    command = [sys.executable, "-W", "error", "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_gradients() -> list[np.ndarray]:
    import ml_dtypes

    types = {"bfloat16": ml_dtypes.bfloat16}
    pairs = enumerate(zip(SHAPES, DTYPES, strict=True))
    with np.errstate(over="ignore"):
        return [values_of(i, shape).astype(types.get(d, d)) for i, (shape, d) in pairs]


@pytest.mark.parametrize("params", ALL_PARAMS, ids=name_of)
def test_arrays_give_arrays(params: KernelParams) -> None:
    segments, gradients = segments_of(params), make_gradients()
    payload, none = kernels.encode(params, gradients, None, segments, RNG)
    want, _ = reference.encode(params, gradients, None, segments, RNG)
    assert none is None and type(payload) is np.ndarray
    assert bits_of(payload) == bits_of(want)
    outputs, finite = kernels.decode(params, payload, 1, segments, 0.5, SHAPES, DTYPES)
    want_outputs, want_finite = reference.decode(params, want, 1, segments, 0.5, SHAPES, DTYPES)
    assert [bits_of(o) for o in outputs] == [bits_of(w) for w in want_outputs]
    assert [(o.shape, o.dtype.name) for o in outputs] == list(zip(SHAPES, DTYPES, strict=True))
    assert finite is want_finite


@pytest.mark.parametrize("params", ALL_PARAMS, ids=name_of)
def test_arrays_of_residuals_are_updated_in_place(params: KernelParams) -> None:
    segments, gradients = segments_of(params), make_gradients()
    residuals = [values_of(40 + i, shape) for i, shape in enumerate(SHAPES)]
    want, want_new = reference.encode(params, gradients, residuals, segments, RNG)
    payload, new = kernels.encode(params, gradients, residuals, segments, RNG)
    assert new is not None and all(a is b for a, b in zip(new, residuals, strict=True))
    assert bits_of(payload) == bits_of(want)
    assert [bits_of(r) for r in residuals] == [bits_of(r) for r in want_new or []]


@pytest.mark.parametrize("params", REDUCIBLE, ids=name_of)
def test_reduce_of_arrays(params: KernelParams) -> None:
    values, residual = values_of(1, (5,)), values_of(2, (5,))
    wire = np.tile(reference.encode(params, [values], None, ROW, RNG)[0], 3)
    want, want_new = reference.reduce(params, wire, 3, residual, ROW, RNG, 0.25)
    payload, new = kernels.reduce(params, wire, 3, residual, ROW, RNG, 0.25)
    assert new is residual
    assert (bits_of(payload), bits_of(residual)) == (bits_of(want), bits_of(want_new))


def test_layout_of_inputs_does_not_matter() -> None:
    params = KernelParams("quantize", 4, 32)
    table = np.asfortranarray(segments_of(params, [(9, 6)]))
    columns = values_of(3, (6, 9)).T
    payload, _ = kernels.encode(params, [columns], None, table, RNG)
    assert bits_of(payload) == bits_of(reference.encode(params, [columns], None, table, RNG)[0])
    spread = np.repeat(payload, 2)[::2]
    assert not spread.flags.c_contiguous
    outputs, _ = kernels.decode(params, spread, 1, table, 1.0, [(54,)], ["float32"])
    want, _ = reference.decode(params, payload, 1, table, 1.0, [(54,)], ["float32"])
    assert bits_of(outputs[0]) == bits_of(want[0])


def test_negative_and_large_seeds_are_the_same_64_bits() -> None:
    params = KernelParams("quantize", 2, 32, stochastic=True)
    table, values = segments_of(params, [(200,)]), values_of(5, (200,))
    keys = [(-3, 2**63, 0, 0), (2**64 - 3, -(2**63), 0, 0)]
    first, second = (kernels.encode(params, [values], None, table, key)[0] for key in keys)
    want, _ = reference.encode(params, [values], None, table, keys[0])
    assert bits_of(first) == bits_of(second) == bits_of(want)


@pytest.mark.parametrize(
    ("params", "dtype", "named"),
    [
        (KernelParams("float16"), np.float64, "float64"),
        (KernelParams("float8"), np.float32, "float8"),
        (KernelParams("quantize", 5, 32), np.float32, "5"),
    ],
)
def test_arrays_that_do_not_fit(params: KernelParams, dtype: Any, named: str) -> None:
    with pytest.raises(CodecError, match=named):
        kernels.encode(params, [np.zeros(5, dtype)], None, ROW, RNG)


def test_arrays_are_decoded_to_the_three_dtypes_only() -> None:
    with pytest.raises(CodecError, match="cannot decode to float64"):
        kernels.decode(
            KernelParams("float16"), np.zeros(10, np.uint8), 1, ROW, 1.0, [(5,)], ["float64"]
        )


def test_bfloat16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingDependencyError, match="pip install ml_dtypes"):
        kernels.decode(
            KernelParams("float16"), np.zeros(10, np.uint8), 1, ROW, 1.0, [(5,)], ["bfloat16"]
        )


def test_importing_gradcomp_and_using_arrays_leaves_tensorflow_alone() -> None:
    run_python(
        "import sys, numpy as np, gradcomp as gc",
        "codec = gc.Quantize(bits=4)",
        "codec.decode(codec.encode(np.ones(9, np.float32)), 9)",
        "heavy = {'tensorflow', 'keras', 'horovod', 'gradcomp._ops'} & set(sys.modules)",
        "assert not heavy, heavy",
    )


def test_is_tensor() -> None:
    import keras
    import tensorflow as tf

    tensors = [tf.constant(1), tf.Variable(1.0), keras.Variable([1.0]), keras.KerasTensor((2,))]
    assert all(map(kernels.is_tensor, tensors))
    others = [np.ones(3), np.float32(1), 1.0, None, [tf.constant(1)], "x"]
    assert not any(map(kernels.is_tensor, others))
    seen: list[bool] = []
    tf.function(lambda x: seen.append(kernels.is_tensor(x)))(tf.constant(1))
    assert seen == [True]


def test_a_module_that_is_being_imported_holds_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorflow", "keras"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert not kernels.is_tensor(np.ones(3))


def test_numel() -> None:
    import keras
    import tensorflow as tf

    assert kernels.numel(np.ones((2, 3))) == kernels.numel(tf.ones([2, 3])) == 6
    assert kernels.numel(keras.Variable(np.ones((2, 3)))) == 6
    with pytest.raises(CodecError, match=r"grads.*\(None, 3\)"):
        kernels.numel(keras.KerasTensor((None, 3), name="grads"), "x")


def test_without_tensorflow() -> None:
    run_python(
        "import sys, numpy as np",
        "sys.modules['tensorflow'] = None",
        "from gradcomp import kernels, MissingDependencyError",
        "kernels.encode(kernels.KernelParams('float16'), [np.ones(2, np.float32)], None,",
        "               np.array([[0, 0, 2, 0, 0]]), (0, 0, 0, 0))",
        "try:",
        "    kernels.load_ops()",
        "except MissingDependencyError as error:",
        "    assert \"Type: pip install 'tensorflow>=2.15,<2.22'\" in str(error), error",
        "else:",
        "    raise AssertionError('no error')",
    )


@pytest.mark.parametrize("version", ["2.14.1", "2.22.0-rc1", "1.15.5", "3.0.0", "unknown"])
def test_untried_tensorflow(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("tensorflow")
    other.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow", other)
    with pytest.raises(MissingDependencyError, match=f"2.15 to 2.21, and {version}.*{INSTALL}"):
        libraries.import_tensorflow.__wrapped__()


@pytest.mark.parametrize("version", ["2.15.0", "2.18.1", "2.21.0-dev20250101"])
def test_supported_tensorflow(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("tensorflow")
    other.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow", other)
    assert libraries.import_tensorflow.__wrapped__() is other


def load_again(monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None) -> None:
    monkeypatch.setattr(libraries, "_ops", None)
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: spec)
    libraries.load_ops()


def test_missing_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependencyError, match=rf"_ops\.so, are not installed.*{REINSTALL}"):
        load_again(monkeypatch, None)


def test_broken_ops(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    broken = tmp_path / "_ops.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(MissingDependencyError, match=f"{broken} does not load.*{REINSTALL}"):
        load_again(monkeypatch, ModuleSpec("gradcomp._ops", None, origin=str(broken)))


def test_foreign_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.setattr(tf, "load_op_library", lambda path: ModuleType("ops"))
    with pytest.raises(MissingDependencyError, match=f"lacks the ops gradcomp_encode.*{REINSTALL}"):
        load_again(monkeypatch, ModuleSpec("gradcomp._ops", None, origin="other.so"))


def test_missing_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradcomp._native", None)
    with pytest.raises(MissingDependencyError, match=REINSTALL):
        kernels.load_native()


def test_the_ops_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[ModuleType] = []

    def load() -> ModuleType:
        time.sleep(0.05)
        loads.append(ModuleType("ops"))
        return loads[-1]

    monkeypatch.setattr(libraries, "_ops", None)
    monkeypatch.setattr(libraries, "_load_ops", load)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(libraries.load_ops())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1 and found == loads * 8
