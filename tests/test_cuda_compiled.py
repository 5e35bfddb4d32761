"""The module that nvcc has made, where it was built: it loads without a GPU, and says so."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

BUILT = importlib.util.find_spec("gradcomp._cuda") is not None


@pytest.mark.skipif(not BUILT, reason="not built: make cuda does it, and make test where nvcc is")
def test_it_loads_without_a_gpu_and_says_that_there_is_none() -> None:
    code = """if True:
        import json
        import numpy as np
        from gradcomp import cuda
        native = cuda.load()
        codec = native.Codec("topk", values="float16")
        table = np.array([[0, 0, 1000, 10, 0]])
        sizes = native.encode_workspace(codec, table), native.decode_workspace(codec, table, 2)
        try:
            native.pointer_device(4096)
        except RuntimeError as error:
            told = str(error)
        print(json.dumps([cuda.devices(), native.runtime_version(), sizes, told]))
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (count, why), version, sizes, told = json.loads(done.stdout)
    assert count == 0 and why.startswith("cudaError")
    assert version >= 12080
    assert min(sizes) > 0
    assert told.startswith("cudaPointerGetAttributes: cudaError")
