"""gradcomp: compressed gradient exchange for synchronous data-parallel TensorFlow training.

    import gradcomp as gc
    import gradcomp.horovod as hvd

    hvd.init()
    opt = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3), compression=gc.TopK(density=0.01))

Importing the package imports neither TensorFlow nor Horovod; a tensor or an engine does.
"""

from gradcomp._version import __version__
from gradcomp.codecs import BF16, FP16, Codec, Identity, Quantize, TopK, codec
from gradcomp.errors import CodecError, GradcompError, MismatchError, MissingDependencyError
from gradcomp.plan import Plan
from gradcomp.policy import Policy

__all__ = [
    "BF16",
    "FP16",
    "Codec",
    "CodecError",
    "GradcompError",
    "Identity",
    "MismatchError",
    "MissingDependencyError",
    "Plan",
    "Policy",
    "Quantize",
    "TopK",
    "__version__",
    "codec",
]
