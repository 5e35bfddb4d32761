"""TensorFlow's own strategies as an engine: replicas of one process, or of several workers."""

from gradcomp.kernels import load_ops

# Before reducers are made, which place what they keep by whether there are GPU kernels.
load_ops()
