"""`python -m bench.demo`: one small training, once per codec, on two Horovod processes."""
