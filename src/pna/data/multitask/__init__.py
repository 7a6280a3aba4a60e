"""The multi-task benchmark: random graphs of ten types, and their labels."""

from pna.data.multitask.generate import multitask as multitask
