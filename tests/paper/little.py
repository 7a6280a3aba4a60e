"""Quick runs of the multi-task experiments that are quicker still."""

from dataclasses import replace
from functools import partial

import pytest

from pna.data.multitask import multitask
from pna.paper import experiment as experiments
from pna.paper import recipes


def make_little(patch: pytest.MonkeyPatch, epochs: int = 2) -> None:
    """Few graphs, of two small sizes, and few epochs. Of smaller sizes, all graphs are connected.

    Workers are processes of their own, to which this does not apply. They get the epochs with the
    settings of a run; its graphs must have been made before.
    """
    for split, count in (("train", 4), ("validation", 2), ("test", 2)):
        patch.setitem(experiments.QUICK_COUNTS, split, count)
    patch.setattr(experiments, "multitask", partial(multitask, sizes=(9, 10)))
    for name, recipe in recipes.RECIPES.items():
        patch.setitem(recipes.RECIPES, name, replace(recipe, quick_epochs=epochs))
