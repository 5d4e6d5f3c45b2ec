"""The paired comparison of two checkouts: which side a ratio favours,
and when a contender misses.
"""

import pytest

from benchmarks.compare import Pair


def _pair(better, figures):
    listed = {"metric": "m", "label": "m", "better": better, "digits": 0}
    return Pair(listed, figures)


@pytest.mark.parametrize(("better", "ratio"), [("higher", 1.1), ("lower", 1 / 1.1)])
def test_a_ratio_above_one_means_that_this_checkout_is_better(better, ratio):
    assert _pair(better, [(100.0, 110.0)] * 3).ratio == pytest.approx(ratio)


def test_the_median_of_paired_ratios_decides_rather_than_the_ratio_of_medians():
    pair = _pair("higher", [(1.0, 1.0), (10.0, 9.0), (100.0, 80.0)])
    assert pair.ratio == pytest.approx(0.9)
    assert pair.missed(0.05)
    assert not pair.missed(0.11)


def test_a_contender_without_figures_misses():
    assert _pair("higher", []).missed(0.05)
