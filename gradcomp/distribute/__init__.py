"""TensorFlow's own strategies as an engine: replicas of one process, or of several workers."""
