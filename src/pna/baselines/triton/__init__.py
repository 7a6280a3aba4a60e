"""Triton kernels of `pna.baselines`."""
