"""A plugin of pytest: the ops run by their GPU kernels, on CUDA emulated by the CPU.

`EMULATED_GPU_OPS` is the library, in which the kernels are registered for the CPU, above its own.
"""

import os

import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

from gradcomp import kernels

kernels.load_ops()
tf.load_op_library(os.environ["EMULATED_GPU_OPS"])
for op in (
    *("GradcompEncode", "GradcompReduce", "GradcompDecode"),
    *("GradcompPackBits", "GradcompUnpackBits"),
    *("GradcompDrawMask", "GradcompApplyMask"),
):
    assert sorted(k.priority for k in get_registered_kernels_for_op(op).kernel) == [0, 1]
