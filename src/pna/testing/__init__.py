"""Tests for users and developers: `check_aggregator`, and the fuzz of this package."""

from pna.testing.aggregators import check_aggregator as check_aggregator
