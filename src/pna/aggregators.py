"""The aggregators of the paper, as objects; names stand for them where they have no parameters."""

from pna.ops.aggregators import Aggregator as Aggregator
from pna.ops.aggregators import KthSmallest as KthSmallest
from pna.ops.aggregators import Max as Max
from pna.ops.aggregators import Mean as Mean
from pna.ops.aggregators import Min as Min
from pna.ops.aggregators import Moment as Moment
from pna.ops.aggregators import NormalisedMean as NormalisedMean
from pna.ops.aggregators import Softmax as Softmax
from pna.ops.aggregators import Softmin as Softmin
from pna.ops.aggregators import Std as Std
from pna.ops.aggregators import Sum as Sum
from pna.ops.aggregators import Var as Var
from pna.ops.reference import Neighbourhoods as Neighbourhoods
