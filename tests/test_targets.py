"""`async_loader.targets` against plain loops over the equations of the papers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_loader import AsyncDataLoader, ReplayBuffer, Sequences, targets
from async_loader.errors import ConfigError, SchemaError

GAMMA, LAM = 0.9, 0.8


@dataclass
class Row:
    """One row of a batch as a list of steps, and the equations as they are printed."""

    reward: list
    value: list
    q: list
    ratio: list
    terminated: list
    truncated: list
    mask: list
    next_value: list | None
    bootstrap: float | None

    def following(self, t):
        """The place of the next step of the episode, or None."""
        if self.terminated[t] or self.truncated[t] or t + 1 == len(self.reward):
            return None
        return t + 1 if self.mask[t + 1] else None

    def value_behind(self, t):
        """V(s[t + 1]); None if it is not known."""
        if self.terminated[t]:
            return 0.0
        if self.following(t) is not None:
            return self.value[t + 1]
        is_last = not any(self.mask[t + 1 :])
        if self.bootstrap is not None and is_last and not self.truncated[t]:
            return self.bootstrap
        return None if self.next_value is None else self.next_value[t]

    def has_target(self, t):
        return self.mask[t] and self.value_behind(t) is not None

    def chain(self, t):
        """The steps from t on whose rewards its target may use."""
        found = []
        while t is not None and self.has_target(t):
            found.append(t)
            t = self.following(t)
        return found

    def delta(self, t, base):
        return self.reward[t] + GAMMA * self.value_behind(t) - base[t]

    def gae(self, t):
        chain = self.chain(t)
        return sum((GAMMA * LAM) ** (k - t) * self.delta(k, self.value) for k in chain)

    def lambda_return(self, t):
        if not self.has_target(t):
            return self.value[t]
        behind, after = self.value_behind(t), self.following(t)
        later = behind if after is None else self.lambda_return(after)
        return self.reward[t] + GAMMA * ((1 - LAM) * behind + LAM * later)

    def vtrace(self, t, rho_bar, c_bar):
        found, traces = self.value[t], 1.0
        for k in self.chain(t):
            rho = min(rho_bar, self.ratio[k])
            found += GAMMA ** (k - t) * traces * rho * self.delta(k, self.value)
            traces *= LAM * min(c_bar, self.ratio[k])
        return found

    def vtrace_advantage(self, t, rho_bar, c_bar):
        if not self.has_target(t):
            return 0.0
        after = self.following(t)
        behind = self.value_behind(t) if after is None else self.vtrace(after, rho_bar, c_bar)
        return min(rho_bar, self.ratio[t]) * (self.reward[t] + GAMMA * behind - self.value[t])

    def retrace(self, t):
        found, traces = self.q[t], 1.0
        for k in self.chain(t):
            if k > t:
                traces *= LAM * min(1.0, self.ratio[k])
            found += GAMMA ** (k - t) * traces * self.delta(k, self.q)
        return found

    def n_step(self, t, n):
        chain = self.chain(t)[:n]
        if not chain:
            return self.value[t]
        rewards = sum(GAMMA ** (k - t) * self.reward[k] for k in chain)
        return rewards + GAMMA ** len(chain) * self.value_behind(chain[-1])

    def to_go(self, t):
        after = self.following(t)
        if after is not None:
            return self.reward[t] + GAMMA * self.to_go(after)
        is_last = not any(self.mask[t + 1 :])
        ended = self.terminated[t] or self.truncated[t]
        behind = 0.0 if self.bootstrap is None or ended or not is_last else self.bootstrap
        return self.reward[t] + GAMMA * behind


@st.composite
def batches(draw):
    rows, time = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (rows, time)
    ends = rng.choice(4, shape, p=draw(st.sampled_from([(0.7, 0.1, 0.1, 0.1), (1, 0, 0, 0)])))
    if draw(st.booleans()):  # as padding is: steps, then none
        mask = np.arange(time) < rng.integers(0, time + 1, (rows, 1))
    else:
        mask = rng.random(shape) < draw(st.sampled_from([1.0, 0.7]))
    given_names = draw(st.sets(st.sampled_from(["next_value", "bootstrap"])))
    batch = {
        "reward": rng.normal(size=shape),
        "value": rng.normal(size=shape),
        "q_value": rng.normal(size=shape),
        "behaviour_log_prob": rng.normal(size=shape),
        "target_log_prob": rng.normal(size=shape),
        "terminated": (ends == 1) | (ends == 3),
        "truncated": (ends == 2) | (ends == 3),
        "mask": mask,
        "next_value": rng.normal(size=shape),
        "bootstrap": rng.normal(size=rows),
    }
    for name in {"next_value", "bootstrap"} - given_names:
        del batch[name]
    for name in ("reward", "value", "q_value", "target_log_prob"):
        batch[name][~mask] = np.nan  # nothing reads what is no step
    return batch


def rows_of(batch):
    ratio = np.exp(batch["target_log_prob"] - batch["behaviour_log_prob"])
    return [
        Row(
            batch["reward"][i],
            batch["value"][i],
            batch["q_value"][i],
            ratio[i],
            batch["terminated"][i],
            batch["truncated"][i],
            batch["mask"][i],
            batch["next_value"][i] if "next_value" in batch else None,
            batch["bootstrap"][i] if "bootstrap" in batch else None,
        )
        for i in range(len(ratio))
    ]


def check(batch, array, equation, elsewhere=0.0):
    for row, found in zip(rows_of(batch), array, strict=True):
        wanted = [equation(row, t) if there else elsewhere for t, there in enumerate(row.mask)]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def check_mask(batch, mask):
    check(batch, mask, Row.has_target, elsewhere=False)


def arguments(batch, *names):
    ends = ("terminated", "truncated", "mask", "next_value", "bootstrap")
    return {name: batch[name] for name in (*names, *ends) if name in batch}


@given(batches())
def test_gae_is_equation_16_of_schulman_et_al(batch):
    found = targets.gae(**arguments(batch, "reward", "value"), gamma=GAMMA, lam=LAM)
    check(batch, found.advantage, Row.gae)
    check(batch, found.target, lambda row, t: row.value[t] + row.gae(t))
    check_mask(batch, found.mask)


@given(batches())
def test_lambda_returns_are_equation_12_18_of_sutton_and_barto(batch):
    found = targets.lambda_returns(**arguments(batch, "reward", "value"), gamma=GAMMA, lam=LAM)
    check(batch, found.target, Row.lambda_return)
    check_mask(batch, found.mask)


LOG_PROBS = ("behaviour_log_prob", "target_log_prob")


@given(batches(), st.sampled_from([(1.0, 1.0), (2.0, 0.7), (math.inf, 1.5)]))
def test_v_trace_is_equation_1_of_espeholt_et_al(batch, bounds):
    found = targets.vtrace(
        **arguments(batch, "reward", "value", *LOG_PROBS),
        gamma=GAMMA,
        lam=LAM,
        rho_bar=bounds[0],
        c_bar=bounds[1],
    )
    check(batch, found.target, lambda row, t: row.vtrace(t, *bounds))
    check(batch, found.advantage, lambda row, t: row.vtrace_advantage(t, *bounds))
    check_mask(batch, found.mask)


@given(batches())
def test_retrace_is_the_operator_of_munos_et_al(batch):
    named = arguments(batch, "reward", "q_value", "value", *LOG_PROBS)
    found = targets.retrace(**named, gamma=GAMMA, lam=LAM)
    check(batch, found.target, Row.retrace)
    check_mask(batch, found.mask)


@given(batches(), st.integers(1, 12))
def test_n_step_returns_are_equation_7_1_of_sutton_and_barto(batch, n):
    found = targets.n_step_returns(**arguments(batch, "reward", "value"), gamma=GAMMA, n_steps=n)
    check(batch, found.target, lambda row, t: row.n_step(t, n))
    check_mask(batch, found.mask)


@given(batches())
def test_reward_to_go_sums_to_the_end_of_the_episode_or_the_row(batch):
    named = arguments(batch, "reward")
    named.pop("next_value", None)
    found = targets.reward_to_go(**named, gamma=GAMMA)
    check(batch, found.target, Row.to_go)
    assert (found.mask == batch["mask"]).all()


def test_a_truncated_step_takes_its_final_value_and_nothing_of_the_next_episode():
    named = {"reward": [[1.0, 1.0, 100.0]], "value": [[5.0, 5.0, 5.0]]}
    named |= {"truncated": [[False, True, False]], "gamma": 0.5, "lam": 1.0}
    without = targets.lambda_returns(**named)
    assert without.target.tolist() == [[1 + 0.5 * 5, 5.0, 5.0]]
    assert without.mask.tolist() == [[True, False, False]]
    named["next_value"] = [[math.nan, 8.0, 6.0]]
    with_final = targets.lambda_returns(**named)
    assert with_final.target.tolist() == [[1 + 0.5 * 5, 1 + 0.5 * 8, 100 + 0.5 * 6]]
    assert with_final.mask.all()


NOT_FINITE = {
    "gae": (targets.gae, ("value",), {}),
    "lambda returns": (targets.lambda_returns, ("value",), {}),
    "v-trace": (
        targets.vtrace,
        ("value", "behaviour_log_prob", "target_log_prob"),
        {"rho_bar": math.inf, "c_bar": math.inf},
    ),
    "retrace": (
        targets.retrace,
        ("q_value", "value", "behaviour_log_prob", "target_log_prob"),
        {},
    ),
    "n steps": (targets.n_step_returns, ("value",), {"n_steps": 3}),
    "rewards": (targets.reward_to_go, (), {}),
}


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", list(NOT_FINITE))
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("before", [True, False])
def test_what_is_not_finite_stays_in_its_episode(name, poison, end, before):
    function, fields, options = NOT_FINITE[name]
    rng = np.random.default_rng(0)
    arrays = {field: rng.normal(size=(2, 8)) for field in ("reward", *fields)}
    arrays[end] = np.zeros((2, 8), np.bool_)
    arrays[end][:, 3] = True
    if fields and end == "truncated":
        arrays["next_value"] = rng.normal(size=(2, 8))
    bad, other = (slice(0, 4), slice(4, 8)) if before else (slice(4, 8), slice(0, 4))
    expected = function(**arrays, **options)
    for field in ("reward", *fields, "next_value"):
        if field in arrays:
            poisoned = arrays[field].copy()
            poisoned[0, bad] = poison
            found = function(**arrays | {field: poisoned}, **options)
            for got, clean in zip(found, expected, strict=True):
                assert np.array_equal(got[0, other], clean[0, other]), field
                assert np.array_equal(got[1], clean[1]), field


# -- in a loader -----------------------------------------------------------------------------------


def table_of_episodes(lengths=(5, 9, 3), truncated=(1,)):
    table = ReplayBuffer(100, view=None)
    writer = table.writer()
    for number, length in enumerate(lengths):
        for t in range(length):
            last = t + 1 == length
            writer.append(
                reward=np.float32(t + number),
                value=np.float32(10 * number + t),
                terminated=last and number not in truncated,
                truncated=last and number in truncated,
            )
    return table


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bootstrap_step_of_sequences_gives_all_others_a_target(workers):
    with table_of_episodes() as table:
        source = table.source(view=Sequences(4, bootstrap=1, boundary="pad"), seed=1)
        gae = targets.GAE(GAMMA, LAM)
        with AsyncDataLoader(source, 16, transform=gae, num_workers=workers) as loader:
            batch = {name: field.numpy().copy() for name, field in next(loader).items()}
    wanted = targets.gae(**arguments(batch, "reward", "value"), gamma=GAMMA, lam=LAM)
    assert np.array_equal(batch["advantage"], wanted.advantage)
    assert np.array_equal(batch["target_mask"], wanted.mask)
    lacks = batch["mask"] & ~batch["target_mask"]
    assert not lacks[:, :4][~batch["truncated"][:, :4]].any()
    assert batch["target_mask"].any()


ALL = [
    targets.GAE(),
    targets.LambdaReturns(),
    targets.NStepReturns(3),
    targets.VTrace(),
    targets.Retrace(),
    targets.RewardToGo(),
]


def a_batch(shape=(2, 4)):
    names = ("reward", "value", "q_value", "behaviour_log_prob", "target_log_prob")
    return {name: np.ones(shape, np.float32) for name in names} | {
        "terminated": np.zeros(shape, np.bool_)
    }


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_a_transform_adds_its_fields_and_leaves_the_others(transform):
    before = a_batch()
    after = transform(dict(before))
    added = set(after) - set(before)
    assert added in (
        {"advantage", "target", "target_mask"},
        {"target", "target_mask"},
        {"reward_to_go"},
    )
    assert all(after[name] is before[name] for name in before)
    assert all(after[name].shape == (2, 4) for name in added)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: targets.GAE(gamma=1.5), r"gamma=1.5: it is a number from 0 to 1"),
        (lambda: targets.LambdaReturns(lam=-1), r"lam=-1"),
        (lambda: targets.VTrace(c_bar=0), r"c_bar=0: it is a number above 0"),
        (lambda: targets.NStepReturns(0), r"n_steps=0: it is a Python int, 1 or more"),
        (lambda: targets.GAE(target="x", advantage="x"), "give each a name of its own"),
    ],
)
def test_bad_settings_are_refused_when_they_are_given(call, text):
    with pytest.raises(ConfigError, match=text):
        call()


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (
            {"reward": np.ones(3)},
            r"reward has shape \[3\]: targets need \[batch, time\].*Sequences",
        ),
        ({"mask": np.ones((2, 1))}, r"mask has shape \[2, 1\], reward \[2, 4\]"),
        ({"reward": np.full((2, 4), "x")}, "reward is <U1: give numbers"),
        ({"value": torch.ones(2, 4).to_sparse()}, "value is a sparse coo tensor "),
    ],
)
def test_wrong_shapes_are_refused_with_both_shapes(arrays, text):
    with pytest.raises(SchemaError, match=text):
        targets.gae(**{"reward": np.ones((2, 4)), "value": np.ones((2, 4))} | arrays)
