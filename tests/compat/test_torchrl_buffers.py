"""The replay buffers of TorchRL, on a table."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import pytest
import torch

from async_loader import Prioritized, Uniform
from async_loader.compat.torchrl import (
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from async_loader.errors import ConfigError


class Storage:
    """As TorchRL's, which need not be installed."""

    max_size = 7


class Slices:
    pass


class SliceSamplerWithoutReplacement:
    """As TorchRL's, which has no counterpart here."""


class HalfMade:
    """As a writer of TorchRL's that no buffer has registered yet."""

    def __repr__(self) -> str:
        raise AttributeError("'NoneType' object has no attribute '_is_full'")


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
        (torch.ones(3, dtype=torch.bool), r"a mask of \[3\] for 8 steps"),
        (-9, "index -9 of 8 steps"),
        (1, "1 of 1 steps are gone"),
    ):
        with pytest.raises(IndexError, match=text):
            buffer[wrong]
    if importlib.util.find_spec("tensordict"):
        dicts = TensorDictReplayBuffer(storage=9)
        dicts.extend(steps(5))
        assert dicts[torch.tensor([[0, 1], [2, 3]])].batch_size == (2, 2)
        assert dicts[-1].batch_size == ()


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"storage": "big"}, "number of steps"),
        ({"storage": [1, 2]}, "number of steps"),
        ({"sampler": Slices()}, "sampler=Slices"),
        ({"sampler": SliceSamplerWithoutReplacement}, "Sequences"),
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


def test_a_batch_size_is_needed():
    buffer = ReplayBuffer(storage=9, sampler=PrioritizedSampler(9, 0.7, 0.9), prefetch=None)
    assert buffer.table.sampler.alpha == 0.7
    assert isinstance(ReplayBuffer(storage=3).table.sampler, Uniform)
    with pytest.raises(ConfigError, match="batch_size"):
        buffer.sample()
    with pytest.raises(ConfigError, match="takes TensorDicts"):
        TensorDictReplayBuffer(storage=3).extend({"x": torch.zeros(2)})


# -- samplers and buffers by TorchRL's names -------------------------------------------------------


def numbered(count: int, **settings: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=count, **settings)
    buffer.extend({"x": torch.arange(count)})
    return buffer


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
