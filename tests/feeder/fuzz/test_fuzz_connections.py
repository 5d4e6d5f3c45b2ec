"""Whatever connects to whichever socket of a feeder: it lives, and honest clients are served."""

from __future__ import annotations

import pytest
from fuzzer import EVERY, Fuzz


@pytest.mark.slow
def test_two_thousand_hostile_connections_harm_no_server_and_no_honest_client(tmp_path):
    assert Fuzz(str(tmp_path), seed=1).run(2000).wrong == []


def test_what_a_server_grows_by_is_counted_after_the_first_inputs():
    fuzz = Fuzz.__new__(Fuzz)
    fuzz.rss = [[10 << 20, 5 << 20], [11 << 20, 5 << 20], [14 << 20, 6 << 20]]
    assert fuzz.growth_mib == 2.0
    assert EVERY == 10_000
