"""Triton kernels of `pna.population`."""
