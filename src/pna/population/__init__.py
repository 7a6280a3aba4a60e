"""Operators that serve populations: many models trained at once, each a slice of one tensor.

They are linear maps, GRU, Set2Set, BatchNorm, dropout, losses and Adam, the whole recurrence of the
multi-task architecture, and sums over graphs and over processes.
"""
