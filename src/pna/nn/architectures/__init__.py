"""Architectures, a file each: whole models from a batch of graphs to predictions.

A file registers its architecture, with default arguments; every file here is imported.
"""

from importlib import import_module
from pkgutil import iter_modules

from pna.nn.architectures.base import ARCHITECTURES as ARCHITECTURES
from pna.nn.architectures.base import DEFAULTS as DEFAULTS
from pna.nn.architectures.base import Prediction as Prediction
from pna.nn.architectures.recurrent import Recurrent as Recurrent
from pna.nn.architectures.stacked import Stacked as Stacked
from pna.nn.architectures.standard import Standard as Standard

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
