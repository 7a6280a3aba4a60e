"""The multi-task benchmark: random graphs of ten types, and what is to be predicted of them."""

from pna.data.multitask.generate import multitask as multitask
