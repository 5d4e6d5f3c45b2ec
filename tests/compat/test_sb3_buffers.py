"""The replay buffers of Stable-Baselines3, beside its own."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("stable_baselines3")

import torch
from gymnasium import spaces
from stable_baselines3.common import buffers as theirs
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from async_loader.compat import sb3 as ours

BOX = spaces.Box(-10, 10, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 48, 48), np.uint8)
GOALS = spaces.Dict({"seen": BOX, "goal": spaces.Discrete(5), "image": IMAGE})
ACTIONS = {
    "continuous": spaces.Box(-1, 1, (2,), np.float64),  # stored as float32
    "discrete": spaces.Discrete(4),
    "many": spaces.MultiDiscrete([3, 3]),
}


class Steps:
    """Calls of ``add`` as an algorithm makes them: episodes that end, in time or by the clock."""

    def __init__(self, obs: spaces.Space[Any], action: spaces.Space[Any], n_envs: int, seed: int):
        self.n_envs, self.obs, self.action = n_envs, obs, action
        self.rng = np.random.default_rng(seed)
        for space in (obs, action):
            space.seed(seed)
        self.last = self.some(obs)

    def some(self, space: spaces.Space[Any]) -> Any:
        many = [space.sample() for _ in range(self.n_envs)]
        if isinstance(space, spaces.Dict):
            return {key: np.stack([one[key] for one in many]) for key in space}
        return np.stack(many)

    def call(self, broken: bool = False) -> tuple[Any, ...]:
        if broken:  # as after a reset that the buffer was not told of
            self.last = self.some(self.obs)
        before, after = self.last, self.some(self.obs)
        done = self.rng.random(self.n_envs) < 0.2
        infos = [
            {"TimeLimit.truncated": True} if d and self.rng.random() < 0.5 else {} for d in done
        ]
        fresh = self.some(self.obs)
        self.last = (
            {
                key: np.stack([fresh[key][i] if d else after[key][i] for i, d in enumerate(done)])
                for key in after
            }
            if isinstance(after, dict)
            else np.stack([fresh[i] if d else after[i] for i, d in enumerate(done)])
        )
        reward = self.rng.normal(size=self.n_envs)
        return before, after, self.some(self.action), reward, done, infos


def pair(name: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return tuple(getattr(module, name)(*args, **kwargs) for module in (theirs, ours))


def feed(both: tuple[Any, ...], steps: Steps, calls: int, broken: float = 0.0) -> None:
    for _ in range(calls):
        one = steps.call(bool(steps.rng.random() < broken))
        for buffer in both:
            # a copy for each: the original reshapes dicts in place
            buffer.add(*pickle.loads(pickle.dumps(one)))


def same(left: Any, right: Any) -> None:
    """Assert that two samples, or parts of them, are equal in type, dtype, shape and value."""
    if left is None:
        assert right is None
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            same(left[key], right[key])
    elif isinstance(left, tuple):
        assert type(left) is type(right)
        for one, other in zip(left, right, strict=True):
            same(one, other)
    else:
        assert type(left) is type(right)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert bool((left == right).all())


def drawn(buffer: Any, batch: int, env: Any = None, seed: int = 7) -> Any:
    np.random.seed(seed)
    return buffer.sample(batch, env=env)


def normaliser(space: spaces.Space[Any], n_envs: int = 1) -> VecNormalize:
    import gymnasium

    class Env(gymnasium.Env[Any, Any]):
        observation_space, action_space = space, ACTIONS["continuous"]

    keys = ["seen"] if isinstance(space, spaces.Dict) else None
    made = VecNormalize(
        DummyVecEnv([Env] * n_envs), norm_obs_keys=keys, clip_obs=2.0, clip_reward=1.0
    )
    for rms in made.obs_rms.values() if keys else [made.obs_rms]:
        rms.mean, rms.var = rms.mean + 0.5, rms.var * 3
    made.ret_rms.var = np.array(0.3)
    return made


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("space", [BOX, IMAGE, spaces.Discrete(5)], ids=["box", "image", "number"])
def test_the_same_seed_gives_the_same_batches(space, n_envs, action):
    both = pair("ReplayBuffer", 25, space, ACTIONS[action], "cpu", n_envs)
    steps = Steps(space, ACTIONS[action], n_envs, 3)
    for calls in (1, 4, 20, 30):  # also before it is full, and after it wrapped
        feed(both, steps, calls)
        same(*[drawn(buffer, 40) for buffer in both])
        assert len({(b.pos, b.full, b.size(), b.buffer_size) for b in both}) == 1


@settings(max_examples=12)
@given(
    size=st.integers(1, 30),
    n_envs=st.integers(1, 4),
    calls=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    timeouts=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_calls_leave_the_same_transitions(size, n_envs, calls, timeouts, seed):
    both = pair(
        "ReplayBuffer",
        size,
        BOX,
        ACTIONS["discrete"],
        "cpu",
        n_envs,
        handle_timeout_termination=timeouts,
    )
    steps = Steps(BOX, ACTIONS["discrete"], n_envs, seed)
    for some in calls:
        feed(both, steps, some)
        left, after = drawn(both[0], 32, seed=seed), np.random.random()
        same(left, drawn(both[1], 32, seed=seed))
        assert np.random.random() == after  # what is drawn later is the same too
    names = ("observations", "next_observations", "actions", "rewards", "dones")
    for name in (*names, "timeouts") if timeouts else names:
        same(*[getattr(buffer, name) for buffer in both])


@pytest.mark.parametrize("n_envs", [1, 2])
def test_dict_observations_are_delivered_by_key(n_envs):
    both = pair("DictReplayBuffer", 20, GOALS, ACTIONS["continuous"], "cpu", n_envs)
    feed(both, Steps(GOALS, ACTIONS["continuous"], n_envs, 5), 30)
    same(*[drawn(buffer, 32) for buffer in both])
    same(*[buffer.next_observations for buffer in both])
    env = normaliser(GOALS)
    same(*[drawn(buffer, 32, env) for buffer in both])


@pytest.mark.parametrize("n_envs", [1, 2])
def test_observations_and_rewards_are_normalised_as_the_original_does(n_envs):
    env = normaliser(BOX, n_envs)
    both = pair("ReplayBuffer", 20, BOX, ACTIONS["continuous"], "cpu", n_envs)
    feed(both, Steps(BOX, ACTIONS["continuous"], n_envs, 5), 30)
    same(*[drawn(buffer, 32, env) for buffer in both])
    assert not torch.equal(drawn(both[1], 32, env).observations, drawn(both[1], 32).observations)


@pytest.mark.skipif(not hasattr(theirs, "NStepReplayBuffer"), reason="an older version")
@pytest.mark.parametrize("n_envs", [1, 3])
def test_n_step_returns_are_those_of_the_original(n_envs):
    both = pair(
        "NStepReplayBuffer", 30, BOX, ACTIONS["discrete"], "cpu", n_envs, n_steps=4, gamma=0.9
    )
    steps, env = Steps(BOX, ACTIONS["discrete"], n_envs, 5), normaliser(BOX)
    for calls in (1, 2, 20, 40, 40):
        feed(both, steps, calls)
        same(*[drawn(buffer, 64) for buffer in both])
        same(*[drawn(buffer, 64, env) for buffer in both])
    with pytest.raises(NotImplementedError, match="optimize_memory_usage"):
        ours.NStepReplayBuffer(
            30,
            BOX,
            ACTIONS["discrete"],
            optimize_memory_usage=True,
            handle_timeout_termination=False,
        )


def test_a_subclass_that_returns_something_else_for_positions_is_asked():
    class Doubled(ours.ReplayBuffer):
        def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
            got = super()._get_samples(batch_inds, env)
            return got._replace(rewards=got.rewards * 2)

    both = (
        theirs.ReplayBuffer(10, BOX, ACTIONS["discrete"]),
        Doubled(10, BOX, ACTIONS["discrete"]),
    )
    feed(both, Steps(BOX, ACTIONS["discrete"], 1, 3), 5)
    one, other = (drawn(buffer, 40) for buffer in both)
    assert torch.equal(one.rewards * 2, other.rewards)


# -- each observation once -------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    size=st.integers(2, 30),
    n_envs=st.integers(1, 3),
    calls=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    broken=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
)
def test_with_observations_stored_once_the_batches_are_those_of_the_original(
    size, n_envs, calls, broken, seed
):
    once = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    both = pair("ReplayBuffer", size * n_envs, BOX, ACTIONS["discrete"], "cpu", n_envs, **once)
    steps = Steps(BOX, ACTIONS["discrete"], n_envs, seed)
    for some in calls:
        feed(both, steps, some, broken)
        same(*[drawn(buffer, 64, seed=seed) for buffer in both])
        if seed % 2:  # as algorithms do before they begin anew
            for buffer in both:
                buffer.dones[(buffer.pos - 1) % size] = True
            same(*[drawn(buffer, 64, seed=seed) for buffer in both])
    for name in ("actions", "rewards", "dones", "timeouts"):
        same(*[np.asarray(getattr(buffer, name)) for buffer in both])


# -- beside the algorithms -------------------------------------------------------------------------


@pytest.mark.parametrize("once", [False, True], ids=["twice", "once"])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_pickle_goes_on_where_the_buffer_was(n_envs, once):
    whole, buffer = pair(
        "ReplayBuffer", 20, BOX, ACTIONS["discrete"], "cpu", n_envs, once, not once
    )
    steps = Steps(BOX, ACTIONS["discrete"], n_envs, 1)
    feed((buffer, whole), steps, 33)
    again = pickle.loads(pickle.dumps(buffer))
    assert (again.pos, again.full, again.n_envs) == (buffer.pos, buffer.full, n_envs)
    for _ in range(3):
        same(drawn(whole, 50), drawn(again, 50))
        feed((again, whole), steps, 9)


@pytest.mark.skipif(not hasattr(theirs, "NStepReplayBuffer"), reason="an older version")
@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_pickle_within_an_episode_ends_none(n_envs):
    both = pair("NStepReplayBuffer", 40, BOX, ACTIONS["discrete"], "cpu", n_envs)
    steps = Steps(BOX, ACTIONS["discrete"], n_envs, 1)
    for calls in (5, 9, 33):
        feed(both, steps, calls)
        both = tuple(pickle.loads(pickle.dumps(buffer)) for buffer in both)
        feed(both, steps, 3)
        same(*[drawn(buffer, 64) for buffer in both])
        for name in ("dones", "timeouts"):
            same(*[np.asarray(getattr(buffer, name)) for buffer in both])


ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
WRITES: list[Any] = [
    lambda array: array.__setitem__(slice(None), 1),
    lambda array: array.__setitem__(([0, 1], [0, 0]), 1),
    lambda array: array.__setitem__(array == array, 1),
    lambda array: array.__iadd__(array),
    lambda array: array[0][0:1].fill(1),
    lambda array: array.reshape(-1).sort(),
    lambda array: np.copyto(array, 1),
    lambda array: np.add(array, array, out=array),
    lambda array: array.setflags(write=True),
]


@pytest.mark.parametrize(
    ("kind", "once"),
    [
        ("ReplayBuffer", False),
        ("ReplayBuffer", True),
        ("DictReplayBuffer", False),
        *([("NStepReplayBuffer", False)] if hasattr(theirs, "NStepReplayBuffer") else ()),
    ],
)
def test_a_write_to_what_a_buffer_shows_is_not_lost_without_a_word(kind, once):
    space = GOALS if kind == "DictReplayBuffer" else BOX
    size = 20 if once else 6  # calls: the latter wraps
    buffer = getattr(ours, kind)(
        2 * size, space, ACTIONS["discrete"], "cpu", 2, once, handle_timeout_termination=not once
    )
    feed((buffer,), Steps(space, ACTIONS["discrete"], 2, 3), 9)
    for name in ARRAYS:
        if once and name == "next_observations":
            continue
        shown = getattr(buffer, name)
        for array in shown.values() if hasattr(shown, "values") else [shown]:
            for write in WRITES:
                with pytest.raises(ValueError, match=r"read-only|writeable|WRITEABLE"):
                    write(array)
        if hasattr(shown, "values"):
            with pytest.raises(TypeError, match="item assignment"):
                shown["seen"] = shown["seen"]
        if name != "rewards":
            with pytest.raises(AttributeError, match=name):
                setattr(buffer, name, shown)
    there = buffer.size()
    buffer.rewards = buffer.rewards * 0 + np.arange(size)[:, None]
    assert buffer.rewards[:there].tolist() == [[i, i] for i in range(there)]
    feed((buffer,), Steps(space, ACTIONS["discrete"], 2, 4), 1)
    kept = [i for i in range(there) if i != (buffer.pos - 1) % size]
    assert buffer.rewards[kept, 0].tolist() == kept
    buffer.rewards = 7.5
    if kind != "NStepReplayBuffer":
        assert set(buffer.sample(50).rewards.flatten().tolist()) == {7.5}
