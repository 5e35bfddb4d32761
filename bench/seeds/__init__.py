"""`python -m bench.seeds`: accuracy with and without compression, over several seeds."""
