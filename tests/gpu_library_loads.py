"""Loads gradcomp/_gpu_ops.so where there may be no GPU: `python tests/gpu_library_loads.py`.

The ops have kernels for the CPU and for GPUs then, and go on running on the CPU.
"""

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

from gradcomp import kernels, reference
from gradcomp.kernels import KernelParams, gpu

ROWS = np.array([[0, 0, 40, 4, 0]])
RNG = (1, 2, 0, 0)

kernels.load_ops()
library = gpu.find()
assert library is not None, "gradcomp/_gpu_ops.so was not built"
has_gpu = bool(tf.config.list_physical_devices("GPU"))
assert kernels.gpu_is_loaded() == has_gpu, gpu.loading()
if not has_gpu:  # by default it is loaded for one only
    tf.load_op_library(str(library))
for op in (
    *("GradcompEncode", "GradcompReduce", "GradcompDecode"),
    *("GradcompPackBits", "GradcompUnpackBits"),
    *("GradcompDrawMask", "GradcompApplyMask"),
):
    devices = sorted(kernel.device_type for kernel in get_registered_kernels_for_op(op).kernel)
    assert devices == ["CPU", "GPU"], (op, devices)

params = KernelParams("topk", values="float16")
gradient = np.arange(40, dtype=np.float32)
with tf.device("/CPU:0"):
    payload, _ = kernels.encode(params, [tf.constant(gradient)], None, ROWS, RNG)
    (decoded,), finite = kernels.decode(params, payload, 1, ROWS, 1.0, [(40,)], ["float32"])
want, _ = reference.encode(params, [gradient], None, ROWS, RNG)
assert payload.numpy().tobytes() == want.tobytes()
assert np.flatnonzero(decoded).tolist() == [36, 37, 38, 39]
assert bool(finite)
print(
    f"cuda: _gpu_ops.so loads in TensorFlow {tf.__version__}, CUDA {tf.test.is_built_with_cuda()}"
)
