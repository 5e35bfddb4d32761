"""When the GPU kernels of the ops are loaded, and where tensors are encoded then."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels as registered

from gradcomp import kernels
from gradcomp.kernels import KernelParams, gpu
from gradcomp.kernels.bits import pack_bits, unpack_bits
from gradcomp.kernels.dropout import apply_mask, draw_mask

ROW = np.array([[0, 0, 8, 0, 0]])


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test loads is forgotten after it."""
    kernels.load_ops()
    monkeypatch.setattr(gpu, "_loading", gpu.loading())


def installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, version: str | None
) -> list[str]:
    """A machine with `gpus` and a library for `version`; what TensorFlow is asked to load."""
    library, loaded = folder / "_gpu_ops.so", list[str]()
    library.write_text("")
    if version is not None:
        (folder / gpu.VERSION_FILE).write_text(version + "\n")
    monkeypatch.setattr(gpu, "find", lambda: library)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * gpus)
    monkeypatch.setattr(tf, "load_op_library", loaded.append)
    return loaded


def test_it_is_loaded_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = installed(tmp_path, monkeypatch, gpus=1, version=tf.__version__)
    gpu.load(tf)
    assert loaded == [str(tmp_path / "_gpu_ops.so")]
    assert gpu.loading() == (True, "", False)


@pytest.mark.parametrize(
    ("gpus", "version", "why", "broken"),
    [
        (0, tf.__version__, "sees no GPU", False),
        (1, "2.20.0", f"built for TensorFlow 2.20.0, and {tf.__version__} runs", True),
        (1, None, "nothing says which TensorFlow", True),
    ],
)
def test_it_is_not_loaded_elsewhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    version: str | None,
    why: str,
    broken: bool,
) -> None:
    loaded = installed(tmp_path, monkeypatch, gpus, version)
    gpu.load(tf)
    assert loaded == []
    assert not kernels.gpu_is_loaded()
    assert why in gpu.loading().why
    assert gpu.loading().broken == broken


def test_a_library_that_is_absent_or_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = tf.load_op_library
    installed(tmp_path, monkeypatch, gpus=1, version=tf.__version__)
    monkeypatch.setattr(tf, "load_op_library", load)
    gpu.load(tf)  # an empty file
    assert "_gpu_ops.so does not load (" in gpu.loading().why
    assert gpu.loading().broken
    monkeypatch.setattr(gpu, "find", lambda: None)
    gpu.load(tf)
    assert gpu.loading() == (False, "_gpu_ops.so was not built", False)


def test_this_machine_has_not_loaded_it() -> None:
    if not tf.config.list_physical_devices("GPU"):
        assert not kernels.gpu_is_loaded()
        assert isinstance(kernels.on_host(), nullcontext)
        assert isinstance(kernels.beside([tf.zeros([3])]), nullcontext)


def devices_of(build: Any) -> dict[str, str]:
    graph = tf.Graph()
    with graph.as_default():
        build()
    return {op.type: op.device for op in graph.get_operations()}


def test_tensors_are_encoded_where_most_of_a_bucket_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_loading", gpu.Loading(True))

    def build() -> None:
        gradients = []
        for device, size in ((None, 900), ("/CPU:0", 6), ("/GPU:0", 5), ("/GPU:1", 8)):
            with tf.device(device):
                gradients.append(tf.zeros([size]))
        rows = np.array([[i, 0, g.shape[0], 0, i] for i, g in enumerate(gradients)])
        kernels.encode(KernelParams("float16"), gradients, None, rows, (1, 2, 0, 0))

    assert devices_of(build)["GradcompEncode"] == "/device:GPU:1"


def test_codes_are_packed_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_loading", gpu.Loading(True))

    def build() -> None:
        with tf.device("/GPU:1"):
            mask = tf.zeros([9]) > 0
        with tf.device("/GPU:0"):
            unpack_bits(pack_bits(mask, 1), 1, tf.shape(mask, tf.int64), tf.bool)

    devices = devices_of(build)
    assert devices["GradcompPackBits"] == devices["GradcompUnpackBits"] == "/device:GPU:1"


def test_masks_of_dropout_are_drawn_and_applied_where_the_tensor_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "_loading", gpu.Loading(True))

    def build() -> None:
        with tf.device("/GPU:1"):
            x = tf.zeros([9])
        with tf.device("/CPU:0"):
            apply_mask(x, draw_mask([1, 2], x, 0.5), 2.0)

    devices = devices_of(build)
    for op in ("GradcompDrawMask", "GradcompApplyMask", "StatelessRandomGetKeyCounter"):
        assert devices[op] == "/device:GPU:1"


def test_placement_is_left_open_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_loading", gpu.Loading(True))

    def build() -> None:
        kernels.encode(KernelParams("float16"), [tf.zeros([8])], None, ROW, (1, 2, 0, 0))

    assert devices_of(build)["GradcompEncode"] == ""


@pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="TensorFlow has no GPU kernels")
@pytest.mark.parametrize("op", ["ConcatV2", "StridedSlice", "Identity", "EnsureShape", "Reshape"])
def test_what_carries_payloads_between_replicas_runs_on_gpus(op: str) -> None:
    found = registered.get_registered_kernels_for_op(op).kernel
    on_gpus = [k for k in found if k.device_type in ("GPU", "DEFAULT")]  # which is all devices
    dtypes = [{t for c in k.constraint for t in c.allowed_values.list.type} for k in on_gpus]
    assert any(tf.uint8.as_datatype_enum in some or not some for some in dtypes)
