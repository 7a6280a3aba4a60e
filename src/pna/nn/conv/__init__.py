"""Graph convolutions, a file each. A file registers what it defines in `pna.nn.registry`."""

from importlib import import_module
from pkgutil import iter_modules


def register_all() -> None:
    """Import every file of this package, and so register all convolutions, sorted by name."""
    from pna.nn.registry import CONVOLUTIONS  # which needs files of this package

    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    for name in sorted(CONVOLUTIONS):
        CONVOLUTIONS[name] = CONVOLUTIONS.pop(name)
