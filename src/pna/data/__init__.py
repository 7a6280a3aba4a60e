"""Graphs on their way to a model: sets of them, batches, and bridges to other libraries."""
