"""Demonstrations and benchmarks of gradcomp; run from the repository root, not installed."""
