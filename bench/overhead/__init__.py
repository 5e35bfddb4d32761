"""`python -m bench.overhead`: what a step costs with gradcomp's reductions and TensorFlow's own."""
