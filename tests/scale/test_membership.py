"""What a directory knows of its shards: versions only grow, and incarnations too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from async_loader.scale.membership import Membership
from async_loader.scale.place import ShardPlace
from async_loader.scale.ray_directory import map_of
from async_loader.scale.shard_map import Shard


def said(number: int, incarnation: int, state: str = "serving", **more: Any) -> dict[str, Any]:
    return {
        "name": f"shard-{number}", "number": number, "address": f"ipc:///s{number}", "host": "h",
        "incarnation": incarnation, "state": state, "reason": "", "retired": [], **more,
    }  # fmt: skip


def test_a_shard_that_has_never_served_is_not_on_the_map():
    members = Membership(5)
    assert not members.describe(said(0, 0, "lost", address=None, reason="it is being started"))
    assert members.shards() == ()
    assert members.reasons == {"shard-0": "it is being started"}


def test_a_lost_shard_stays_on_the_map_with_its_address():
    members = Membership(5)
    members.describe(said(3, 7))
    assert members.lost("shard-3", "no answer")
    (one,) = members.shards()
    assert (one.state, one.address, one.incarnation) == ("lost", "ipc:///s3", 7)
    assert members.incarnation("shard-3") is None
    assert not members.lost("shard-3", "no answer")


def test_the_number_of_a_removed_shard_is_not_given_again():
    members = Membership(5)
    members.describe(said(0, 1))
    members.describe(said(1, 1))
    members.forget(["shard-1", "shard-9"])
    assert members.numbers() == {0, 1}
    assert not members.describe(said(1, 2))  # a late word of it
    assert [one.number for one in members.shards()] == [0]


def test_a_directory_that_begins_anew_hears_of_removed_numbers_from_the_others():
    members = Membership(5)
    members.describe(said(0, 1, retired=[1, 2]))
    assert members.numbers() == {0, 1, 2}


def test_a_client_that_has_seen_a_later_version_moves_the_directory_beyond_it():
    members = Membership(5)
    assert not members.not_behind(5)
    assert members.not_behind(9)
    assert members.version == 10


moves = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 4),
        st.sampled_from(["serving", "draining", "lost", "unreachable"]),
    ),
    max_size=30,
)


@given(moves)
def test_versions_grow_with_each_change_and_incarnations_never_shrink(moves):
    members = Membership(0)
    for number, incarnation, what in moves:
        before = {one.name: one for one in members.shards()}
        version = members.version
        if what == "unreachable":
            changed = members.lost(f"shard-{number}", "why")
        else:
            changed = members.describe(said(number, incarnation, what))
        after = {one.name: one for one in members.shards()}
        assert changed == (before != after)
        assert members.version == version + changed
        for name, one in before.items():
            assert after[name].incarnation >= one.incarnation


def plain(number: int, **more: Any) -> dict[str, Any]:
    one = {key: said(number, 1)[key] for key in ("name", "number", "address", "host")}
    return {**one, "incarnation": 1, "state": "serving", **more}


def test_a_shard_that_a_new_directory_has_not_heard_of_is_lost_and_not_removed():
    known = map_of({"version": 1, "shards": [plain(0), plain(1), plain(2)], "retired": []})
    found = map_of({"version": 2, "shards": [plain(1)], "retired": [2]}, known)
    assert [(one.number, one.state) for one in found.shards] == [(0, "lost"), (1, "serving")]


def test_a_client_reports_a_loss_until_its_map_shows_it():
    reports = []
    shard = Shard(name="s", number=0, address="a", host="h", incarnation=3, state="serving")
    place = ShardPlace(shard, lambda *said: reports.append(said))
    place.lost()
    place.lost()  # an attempt failed, and the directory may not have heard
    place.shard = replace(shard, state="lost")
    place.lost()
    assert reports == [("s", 3)] * 2
    place.shard = replace(shard, incarnation=4)
    place.lost()
    assert reports[2:] == [("s", 4)]
