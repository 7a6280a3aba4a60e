"""Operators that serve populations: many models trained at once, each a slice of one tensor.

The linear maps of all members, their GRU, Set2Set, BatchNorm, dropout, losses and Adam; the whole
recurrence of the multi-task architecture; sums over graphs and over processes.
"""
