"""Verifies every CUDA kernel against the CPU's, then times it beside copies and PyTorch."""
