"""The replay buffers of TorchRL, on a table."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from async_loader import AsyncDataLoader, Prioritized, Transitions, Uniform
from async_loader.compat.torchrl import (
    PrioritizedReplayBuffer,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from async_loader.errors import ConfigError, MissingExtra, NotEnoughData


class Storage:
    """As TorchRL's, which need not be installed."""

    max_size = 7


class PrioritizedSampler:
    _alpha, _beta, _eps = 0.7, 0.9, 1e-8


class Slices:
    pass


class SliceSamplerWithoutReplacement:
    """As TorchRL's, which has no counterpart here."""


class HalfMade:
    """As a writer of TorchRL's that no buffer has registered yet."""

    def __repr__(self) -> str:
        raise AttributeError("'NoneType' object has no attribute '_is_full'")


class RoundRobinWriter(HalfMade):
    """As TorchRL's default."""


def steps(count: int, first: int = 0) -> Any:
    tensordict = pytest.importorskip("tensordict")
    number = torch.arange(first, first + count)
    return tensordict.TensorDict(
        {
            "obs": number[:, None].float().expand(count, 3),
            "action": number,
            "next": {"obs": number[:, None].float() + 1, "done": number[:, None] % 5 == 4},
        },
        batch_size=[count],
    )


def test_what_is_drawn_is_what_was_added_with_its_nested_entries():
    buffer = TensorDictReplayBuffer(storage=Storage(), batch_size=5)
    data = steps(10)
    index = buffer.extend(data)
    assert index.tolist() == data["index"].tolist() == list(range(10))
    one = steps(1, 10)[0]
    assert buffer.add(one) == int(one["index"]) == 10
    assert (len(buffer), buffer.write_count) == (7, 11)
    batch = buffer.sample()
    assert batch.batch_size == (5,)
    assert batch["index"].tolist() == batch["action"].tolist()
    assert set(buffer.sample(200)["action"].tolist()) == set(range(4, 11))
    assert torch.equal(batch["next", "obs"][:, 0], batch["action"] + 1.0)
    assert batch["next", "done"].dtype is torch.bool


def test_the_info_of_a_plain_buffer_stands_beside_the_batch():
    buffer = ReplayBuffer(storage=10, batch_size=4)
    buffer.extend(steps(6))
    batch, info = buffer.sample(return_info=True)
    assert info["index"].tolist() == batch["action"].tolist()
    assert "index" not in batch.keys()  # noqa: SIM118
    assert buffer.sample(2).batch_size == (2,)
    assert next(iter(buffer)).batch_size == (4,)


@pytest.mark.parametrize("as_dict", [False, True])
def test_tensors_and_dicts_come_back_as_they_were(as_dict):
    buffer = ReplayBuffer(storage=10, batch_size=4)
    values = torch.arange(6.0)
    buffer.extend({"x": {"y": values}} if as_dict else values)
    buffer.add({"x": {"y": torch.tensor(6.0)}} if as_dict else torch.tensor(6.0))
    buffer.extend([{"x": {"y": values[0]}}] if as_dict else [values[0]])
    batch, info = buffer.sample(return_info=True)
    found = batch["x"]["y"] if as_dict else batch
    assert torch.equal(found, info["index"] % 7.0)
    third = buffer[3]
    assert float(third["x"]["y"] if as_dict else third) == 3.0
    assert len(buffer[:]["x"]["y"] if as_dict else buffer[:]) == 8


def test_priorities_decide_what_is_drawn_and_weights_come_with_it():
    buffer = TensorDictReplayBuffer(storage=50, sampler=Prioritized(1.0, 1.0, 0.0), batch_size=64)
    data = steps(20)
    data["td_error"] = torch.zeros(20)
    data["td_error"][7] = -2.0  # an error: its size counts
    buffer.extend(data)
    batch = buffer.sample()
    assert set(batch["action"].tolist()) == {7}
    assert batch["priority_weight"].shape == (64,)
    assert "td_error" not in batch.keys()  # noqa: SIM118
    buffer.update_priority(torch.tensor([7]), 0.0)
    batch["td_error"] = torch.zeros(64, 2)
    few = steps(3)
    few["index"], few["td_error"] = torch.tensor([2, 3, 4]), torch.tensor([[0, 1], [2, 0], [0, 0]])
    buffer.update_tensordict_priority(few)
    drawn = torch.bincount(buffer.sample(3000)["action"], minlength=20)
    assert set(drawn.nonzero()[:, 0].tolist()) == {2, 3}
    assert 1.5 < drawn[3] / drawn[2] < 2.6


def test_an_update_of_a_step_that_is_gone_changes_no_other():
    buffer = ReplayBuffer(storage=5, sampler=Prioritized(1.0, 1.0, 0.0))
    old = buffer.extend(torch.arange(5.0))
    buffer.extend(torch.arange(5.0, 12.0))
    buffer.update_priority(old, torch.zeros(5))
    assert set(buffer.sample(300).tolist()) == {7.0, 8.0, 9.0, 10.0, 11.0}
    with pytest.raises(IndexError, match="1 of 2 steps are gone"):
        buffer[[0, 11]]
    assert buffer[2:4].tolist() == [9.0, 10.0]


def test_steps_that_the_table_was_given_count_like_others():
    """As of writers of other processes, of deletes, and of steps that wait for others."""
    buffer = ReplayBuffer(storage=20, batch_size=4)
    buffer.extend({"x": torch.arange(10)})
    buffer.table.extend(x=np.arange(10, 20))
    assert (len(buffer), buffer.write_count) == (20, 20)
    assert buffer[12:14]["x"].tolist() == [12, 13]
    assert buffer[:]["x"].tolist() == list(range(20))
    buffer.table.delete(np.arange(5))
    assert buffer[0:3]["x"].tolist() == [5, 6, 7]
    assert buffer.write_count == 20
    waiting = ReplayBuffer(storage=20)
    waiting.extend({"obs": torch.arange(10.0), "reward": torch.zeros(10)})
    waiting.table.source(view=Transitions(3))
    assert len(waiting) == 8
    assert waiting[0:3]["obs"].tolist() == [0.0, 1.0, 2.0]
    filled = TensorDictReplayBuffer(storage=9, batch_size=2)
    pytest.importorskip("tensordict")
    filled.table.extend(obs=np.zeros((5, 3), np.float32))
    assert filled.sample()["obs"].shape == (2, 3)


def test_an_index_may_be_a_mask_a_negative_number_or_of_any_shape():
    buffer = ReplayBuffer(storage=8)
    buffer.extend({"x": torch.arange(10), "y": {"z": torch.zeros(10, 3)}})
    assert buffer[torch.arange(8) > 5]["x"].tolist() == [8, 9]
    assert buffer[-1]["x"].item() == 9
    assert buffer[[-8, 3]]["x"].tolist() == [2, 3]
    assert buffer[torch.tensor([[2, 3], [8, 9]])]["x"].tolist() == [[2, 3], [8, 9]]
    assert buffer[torch.tensor([[2, 3], [8, 9]])]["y"]["z"].shape == (2, 2, 3)
    assert buffer[range(4, 6)]["x"].tolist() == [4, 5]
    assert buffer[[]]["x"].tolist() == []
    for wrong, text in (
        (torch.tensor([2.9]), "not float32"),
        (torch.ones(3, dtype=torch.bool), "boolean"),
        (-9, "-9"),
        (1, "1 of 1 steps are gone"),
    ):
        with pytest.raises(IndexError, match=text):
            buffer[wrong]
    if importlib.util.find_spec("tensordict"):
        dicts = TensorDictReplayBuffer(storage=9)
        dicts.extend(steps(5))
        assert dicts[torch.tensor([[0, 1], [2, 3]])].batch_size == (2, 2)
        assert dicts[-1].batch_size == ()


def test_without_priorities_updates_do_nothing():
    buffer = TensorDictReplayBuffer(storage=9, batch_size=3)
    data = steps(5)
    buffer.extend(data)
    data["td_error"] = torch.ones(5)
    buffer.update_tensordict_priority(data)
    buffer.update_priority(0, 3.0)
    assert buffer.sample().batch_size == (3,)


def test_an_emptied_buffer_has_nothing_and_goes_on():
    buffer = ReplayBuffer(storage=9, batch_size=3)
    buffer.extend(torch.arange(5.0))
    buffer.empty()
    assert (len(buffer), buffer.write_count) == (0, 0)
    with pytest.raises(NotEnoughData):
        buffer.sample()
    assert buffer.extend(torch.arange(2.0)).tolist() == [5, 6]
    assert set(buffer.sample(30).tolist()) == {0.0, 1.0}
    buffer.empty(empty_write_count=False)
    buffer.extend(torch.arange(3.0))
    assert buffer.write_count == 5
    again = ReplayBuffer(storage=9)
    again.load_state_dict(buffer.state_dict())
    assert (len(again), again.write_count) == (3, 5)


@pytest.mark.parametrize("used", [False, True], ids=["into a new one", "into a used one"])
def test_what_is_loaded_is_drawn_by_the_buffers_own_sampler(used):
    saved = ReplayBuffer(storage=9, sampler=Uniform())
    saved.extend(torch.arange(5.0))
    buffer = ReplayBuffer(storage=9, sampler=Prioritized(1.0), batch_size=3)
    table = buffer.table
    if used:
        buffer.extend(torch.arange(3.0))
    buffer.load_state_dict(saved.state_dict())
    assert buffer.table is table  # a loader may read it
    assert buffer.table.sampler.prioritized
    buffer.update_priority(3, 1e9)
    assert set(buffer.sample(20).tolist()) == {3.0}


@pytest.mark.parametrize("used", [False, True], ids=["into a new one", "into a used one"])
def test_states_and_folders_hold_everything(tmp_path, used):
    buffer = TensorDictReplayBuffer(storage=9, sampler=Prioritized(), batch_size=3)
    buffer.extend(steps(14))
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    buffer.dumps(tmp_path / "saved")
    file.seek(0)
    for load in (
        lambda one: one.load_state_dict(torch.load(file)),
        lambda one: one.loads(tmp_path / "saved"),
    ):
        again = TensorDictReplayBuffer(storage=9, sampler=Prioritized(), batch_size=3)
        if used:
            again.extend(steps(2))
        load(again)
        assert again[:]["action"].tolist() == list(range(5, 14))
        assert again.extend(steps(1)).tolist() == [14]
        assert again.table.sampler.prioritized


@pytest.mark.parametrize("by_path", [False, True])
def test_what_is_loaded_within_an_episode_goes_on_with_it(by_path, tmp_path):
    buffer, again = (ReplayBuffer(storage=9) for _ in range(2))
    some = {"x": torch.arange(3), "truncated": torch.zeros(3, dtype=torch.bool)}
    buffer.extend(some)
    if by_path:
        buffer.dumps(tmp_path)
        again.loads(tmp_path)
    else:
        again.load_state_dict(buffer.state_dict())
    again.extend(some)
    assert not again[:]["truncated"].any()


def test_functions_change_batches_and_transforms_of_torchrl_are_refused():
    buffer = ReplayBuffer(storage=9, batch_size=3, transform=lambda batch: batch * 2)
    assert buffer.append_transform(lambda batch: batch + 1) is buffer
    buffer.extend(torch.arange(4.0))
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(batch, info["index"] * 2.0 + 1)
    theirs = type("Compose", (), {"__module__": "torchrl.envs.transforms", "__call__": id})()
    with pytest.raises(ConfigError, match="Compose is a transform of TorchRL"):
        buffer.append_transform(theirs)
    with pytest.raises(ConfigError, match="function of the batch"):
        ReplayBuffer(storage=9, transform=3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"storage": "big"}, "number of steps"),
        ({"storage": [1, 2]}, "number of steps"),
        ({"sampler": Slices()}, "sampler=Slices"),
        ({"sampler": SliceSamplerWithoutReplacement}, "Sequences"),
        ({"sampler": lambda: SliceSampler(num_slices=2, span=1)}, "span"),
        ({"writer": HalfMade()}, "writer=<HalfMade>.* oldest"),
        ({"sampler": HalfMade()}, "sampler=HalfMade"),
        ({"storage": HalfMade()}, "storage=<HalfMade>"),
        ({"shared": HalfMade()}, "shared=<HalfMade>"),
        ({"anything": 1}, "anything=1"),
    ],
)
def test_what_means_nothing_here_is_refused_with_a_remedy(arguments, text):
    with pytest.raises(ConfigError, match=text):
        ReplayBuffer(**arguments)


def test_a_batch_size_is_needed_and_samplers_of_torchrl_are_taken_by_name():
    buffer = ReplayBuffer(storage=9, sampler=PrioritizedSampler(), prefetch=None)
    assert buffer.table.sampler.alpha == 0.7
    assert isinstance(ReplayBuffer(storage=3).table.sampler, Uniform)
    with pytest.raises(ConfigError, match="batch_size"):
        buffer.sample()
    with pytest.raises(ConfigError, match="takes TensorDicts"):
        TensorDictReplayBuffer(storage=3).extend({"x": torch.zeros(2)})


def test_a_loader_reads_the_table():
    buffer = ReplayBuffer(storage=50)
    buffer.extend({"x": np.arange(20.0, dtype=np.float32)})
    with AsyncDataLoader(buffer.table, 8, num_workers=0) as loader:
        batch = next(loader)
    assert torch.equal(batch["x"], batch["index"].float())


def test_the_code_of_the_guide_that_needs_tensordict_runs():
    pytest.importorskip("tensordict")
    text = (Path(__file__).parents[2] / "docs" / "guides" / "torchrl.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for code in blocks:
        exec(compile(code, "torchrl.md", "exec"), {})


def test_without_tensordict_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensordict", None)
    buffer = numbered(2)
    buffer._kind = "tensordict"
    with pytest.raises(MissingExtra, match=r"async_loader\[torchrl\]"):
        buffer.sample(1)


# -- samplers and buffers by TorchRL's names -------------------------------------------------------


def numbered(count: int, **settings: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=count, **settings)
    buffer.extend({"x": torch.arange(count)})
    return buffer


def test_what_changes_no_batch_is_taken():
    buffer = ReplayBuffer(
        storage=lambda: Storage(),
        prefetch=3,
        writer=RoundRobinWriter,
        dim_extend=0,
        transport="auto",
        sampler=SamplerWithoutReplacement,
    )
    assert isinstance(buffer.table.sampler, SamplerWithoutReplacement)
    assert ReplayBuffer(storage=3, writer=RoundRobinWriter()).table.capacity == 3


@pytest.mark.parametrize("rows", [12, 7, 1])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_passes_without_replacement_have_each_step_once(rows, drop_last, shuffle):
    """As the loops of PPO, over a buffer that each iteration fills anew."""
    order = SamplerWithoutReplacement(drop_last, shuffle)
    buffer = ReplayBuffer(storage=rows, sampler=order, batch_size=4, seed=1)
    if drop_last and rows < 4:
        buffer.extend({"x": torch.arange(rows)})
        with pytest.raises(ConfigError, match="4"):
            buffer.sample()
        return
    orders = set()
    for iteration in range(3):
        first = rows * iteration
        buffer.extend({"x": torch.arange(first, first + rows)})
        for _ in range(4):
            batches = [batch["x"].tolist() for batch in buffer]
            kept = rows - rows % 4 if drop_last else rows
            assert [len(one) for one in batches[:-1]] == [4] * (-(-kept // 4) - 1)
            seen = [x - first for one in batches for x in one]
            assert len(set(seen)) == len(seen) == kept
            assert set(seen) <= set(range(rows))
            orders.add(tuple(seen))
    assert (len(orders) > 1) == (shuffle and rows > 1)


def test_a_write_begins_a_pass_anew_and_a_loop_that_was_left_goes_on():
    buffer = numbered(8, sampler=SamplerWithoutReplacement(), batch_size=3)
    first = next(iter(buffer))["x"].tolist()
    rest = [x for batch in buffer for x in batch["x"].tolist()]
    assert sorted(first + rest) == list(range(8))
    buffer.sample()
    buffer.add({"x": torch.tensor(8)})
    assert sorted(x for batch in buffer for x in batch["x"].tolist()) == list(range(1, 9))


@pytest.mark.parametrize("by_path", [False, True])
def test_a_pass_goes_on_where_it_was_saved(by_path, tmp_path):
    buffer = numbered(9, sampler=SamplerWithoutReplacement(), batch_size=2)
    buffer.sample()
    other = ReplayBuffer(storage=9, sampler=SamplerWithoutReplacement(), batch_size=2)
    if by_path:
        buffer.dumps(tmp_path)
        other.loads(tmp_path)
    else:
        other.load_state_dict(buffer.state_dict())
    assert [b["x"].tolist() for b in other] == [b["x"].tolist() for b in buffer]


def episodes(lengths: list[int], **more: Any) -> dict[str, Any]:
    number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    step = torch.cat([torch.arange(one) for one in lengths])
    done = torch.cat([torch.arange(one) == one - 1 for one in lengths])[:, None]
    return {"number": number, "step": step, "next": {"done": done}, **more}


@pytest.mark.parametrize("by", ["end_key", "end_keys", "traj_key", "episode", "theirs"])
@pytest.mark.parametrize("settings", [{"slice_len": 4}, {"num_slices": 5}])
@pytest.mark.parametrize("cached", [False, True])
def test_slices_are_parts_of_trajectories_each_as_likely(by, settings, cached):
    settings = {"cache_values": cached, **settings}
    data = episodes([6, 40, 4, 3])
    if by == "end_key":
        settings["end_key"] = ("next", "done")
    elif by == "end_keys":
        settings["end_keys"] = [("next", "gone"), ("next", "done")]
    elif by == "traj_key":
        settings["traj_key"] = "number"
    elif by == "episode":
        data["episode"] = data["number"]
        data["next"]["done"][:] = False
    sampler: Any = SliceSampler(**settings)
    if by == "theirs":
        their = {"num_slices": None, "slice_len": None, "span": (False, False), **settings}
        sampler = type("SliceSampler", (), {**their, "traj_key": "number", "_fetch_traj": True})()
    buffer = ReplayBuffer(storage=53, sampler=sampler, batch_size=20, seed=0)
    buffer.extend(data)
    numbers = []
    for _ in range(80):
        batch, info = buffer.sample(return_info=True)
        number, step = batch["number"].reshape(5, 4), batch["step"].reshape(5, 4)
        assert torch.equal(step, step[:, :1] + torch.arange(4))
        assert torch.equal(number, number[:, :1].expand(5, 4))
        assert info["index"].shape == (20,)
        truncated = info["next", "truncated"]
        assert truncated.shape == (20, 1)
        assert truncated.reshape(5, 4).tolist() == [[False, False, False, True]] * 5
        assert torch.equal(info["next", "done"], batch["next"]["done"] | truncated)
        assert not info["next", "terminated"].any()
        numbers += number[:, 0].tolist()
    counts = np.bincount(numbers, minlength=4)
    assert counts[3] == 0
    assert (counts[:3] > 90).all()
    buffer.extend(
        {**episodes([50]), **({"episode": torch.full((50,), 9)} if by == "episode" else {})}
    )
    assert (buffer.sample()["number"] == 0).any()


def test_shorter_trajectories_are_shown_whole_unless_lengths_are_strict():
    tensordict = pytest.importorskip("tensordict")
    data = episodes([2, 3], is_init=torch.tensor([True, False] * 2 + [False])[:, None])
    sampler = SliceSampler(slice_len=4, strict_length=False)
    buffer = TensorDictReplayBuffer(storage=9, sampler=sampler, batch_size=8)
    buffer.extend(tensordict.TensorDict(data, batch_size=[5]))
    for _ in range(20):
        batch = buffer.sample()
        ends = batch["next", "truncated"].flatten().nonzero().flatten().tolist()
        assert len(ends) == 2
        for first, last in zip((0, ends[0] + 1), ends, strict=True):
            number = int(batch["number"][first])
            assert batch["step"][first : last + 1].tolist() == list(range(2 + number))
            assert batch["is_init"][first]
        assert len(batch) == ends[-1] + 1
    buffer = ReplayBuffer(storage=9, sampler=SliceSampler(num_slices=2), batch_size=8)
    with pytest.raises(NotEnoughData, match="empty"):
        buffer.sample()
    buffer.extend(data)
    with pytest.raises(ConfigError, match=r"4 steps, and the longest trajectory 3"):
        buffer.sample()
    with pytest.raises(ConfigError, match="7 steps is no multiple of the 2 slices"):
        buffer.sample(7)
    with pytest.raises(ConfigError, match="one of num_slices and slice_len"):
        SliceSampler()


def test_buffers_with_priorities_have_the_names_and_weights_of_torchrl():
    plain = PrioritizedReplayBuffer(alpha=1.0, beta=0.5, eps=0.0, storage=4, batch_size=64)
    plain.extend(torch.arange(4.0))
    plain.update_priority(torch.arange(4), torch.tensor([1.0, 4.0, 16.0, 0.0]))
    values, info = plain.sample(return_info=True)
    # of the least priority of all that can be drawn, also where the batch lacks it
    assert torch.allclose(info["priority_weight"], torch.tensor([1.0, 0.5, 0.25])[values.long()])
    pytest.importorskip("tensordict")
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=1.1, priority_key="loss", reduction="max", storage=20, batch_size=8
    )
    buffer.extend(steps(20))
    batch = buffer.sample()
    assert {"index", "priority_weight"} <= set(batch.keys())
    batch["loss"] = torch.full((8,), 50.0)
    buffer.update_tensordict_priority(batch)
    drawn = buffer.sample(200)["index"]
    assert torch.isin(drawn, batch["index"]).float().mean() > 0.7
    with pytest.raises(ConfigError, match="largest"):
        TensorDictPrioritizedReplayBuffer(alpha=1, beta=1, reduction="mean")


def test_a_pass_begins_anew_in_a_buffer_of_another_size():
    one = ReplayBuffer(storage=10, sampler=SamplerWithoutReplacement(), batch_size=2, seed=1)
    one.extend({"x": torch.arange(13)})
    one.sample()
    other = ReplayBuffer(storage=6, sampler=SamplerWithoutReplacement(), batch_size=2)
    other.load_state_dict(one.state_dict())
    drawn = [x for _ in range(3) for x in other.sample()["x"].tolist()]
    assert sorted(drawn) == list(range(7, 13))
