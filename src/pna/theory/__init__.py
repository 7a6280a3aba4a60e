"""The paper's theorems as functions that run, and what they say of one's own data."""

from pna.theory.advice import Advice as Advice
from pna.theory.advice import Merging as Merging
from pna.theory.advice import MomentUse as MomentUse
from pna.theory.advice import advise as advise
from pna.theory.collision import Collision as Collision
from pna.theory.collision import Search as Search
from pna.theory.collision import find_collision as find_collision
from pna.theory.countable import collisions as collisions
from pna.theory.countable import decode as decode
from pna.theory.countable import encode as encode
from pna.theory.countable import multisets as multisets
from pna.theory.depth import growth as growth
from pna.theory.moments import Recovered as Recovered
from pna.theory.moments import multiset_from_moments as multiset_from_moments
from pna.theory.moments import size_from_scaled as size_from_scaled
from pna.theory.pairs import smallest_pair as smallest_pair
