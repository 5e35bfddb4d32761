"""Time to accuracy between hosts, with and without compression: `python -m bench.train`."""
