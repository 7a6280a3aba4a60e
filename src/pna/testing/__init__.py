"""What finds mistakes: in aggregators of your own, and in this package."""

from pna.testing.aggregators import check_aggregator as check_aggregator
