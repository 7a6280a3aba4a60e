"""Operators for populations: many models trained at once, each a slice of the same tensors.

The package contains linear maps, GRU, Set2Set, BatchNorm, dropout and Adam, the whole recurrence of
the multi-task architecture, and sums over graphs and over processes.
"""
