"""The aggregators of the paper, as objects; names stand for them where they have no parameters."""

from pna.ops.aggregators import *  # noqa: F403
from pna.ops.reference import Neighbourhoods as Neighbourhoods
