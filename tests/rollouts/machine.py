"""A state machine over a table of rollouts, with a model of what must become of each prompt."""

from __future__ import annotations

import copy
import itertools

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from async_loader import Field
from async_loader.errors import Timeout
from async_loader.rollouts.batches import Pieces, joined
from async_loader.rollouts.calls import rollout_calls
from async_loader.rollouts.saving import restore, state_of
from async_loader.rollouts.schema import GroupSchema, Ragged
from async_loader.rollouts.slots import GroupSettings
from async_loader.rollouts.states import MEMBER_BITS, SLOT, State

SCHEMA = {
    "tokens": Ragged("int32"),
    "version": Ragged("int32"),
    "reward": "float32",
    "answer": Field((), "int32", scope="group"),
}
GENERATORS, RANKS = ("gen-0", "gen-1"), ("rank-0", "rank-1")
DEADLINE_S = 10.0
PROMPTS = 24


class LocalDriver:
    """Calls of a table of this process, with a clock that the test moves."""

    def __init__(self, settings):
        self.now = 0.0
        self.settings = settings
        self.calls = rollout_calls(settings, lambda: self.now)

    def ask(self, client, name, arrays=None, /, **arguments):
        """The answer; ``None``: it would wait."""
        request = self.calls.ask(client, name, arguments, arrays or {}, 0.0)
        if isinstance(request.error, Timeout):
            return None
        if request.error is not None:
            raise request.error
        head, arrays = request.answer
        return head, joined(arrays)[0] if isinstance(arrays, Pieces) else arrays

    def pass_time(self, seconds):
        self.now += seconds
        self.calls.advance()

    def kill(self, client):
        self.calls.leave(client, f"{client} died")

    def state(self):
        return copy.deepcopy(state_of(self.calls))

    def load(self, state):
        restore(self.calls, copy.deepcopy(state))


class RolloutMachine(RuleBasedStateMachine):
    """Any history of generators, a grader, learners, kills, saves and loads."""

    driver_of = LocalDriver

    @initialize(
        batch=st.integers(2, 3),
        max_lag=st.integers(0, 2),
        replay=st.sampled_from([0, 0, 3]),
        world=st.integers(1, 2),
        judges=st.booleans(),
        tokens=st.sampled_from([None, 8]),
        returns=st.booleans(),
    )
    def begin(self, batch, max_lag, replay, world, judges, tokens, returns):
        self.returns = returns  # whether generators are there until the end
        self.settings = GroupSettings(
            schema=GroupSchema.of(SCHEMA), batch=batch, max_lag=max_lag, size=2,
            deadline_s=DEADLINE_S, replay=replay,
        )  # fmt: skip
        self.driver = self.driver_of(self.settings)
        self.learner = {
            "needs": ["reward"], "fields": None, "judges": judges,
            "max_times_sampled": 2 if replay else 1, "tokens": tokens, "cost": [1.0, 0.1],
            "overlong": "alone", "world_size": world, "sampler": None,
        }  # fmt: skip
        self.world, self.tickets, self.parts, self.version = world, 0, 0, 0
        self.part = dict.fromkeys(RANKS, 0)
        self.after = dict.fromkeys(RANKS, -1)
        self.held = {}  # by rank: the step that its learner has and has not settled
        self.reserved = {}  # by group: who makes it, for which prompt
        self.made = {}  # by group: prompt, and the tokens of each member
        self.trained, self.ended = {}, set()  # by prompt: groups that were trained
        self.stale_ids, self.saves = [], []
        self.over = False

    # -- generators --------------------------------------------------------------------------------

    @rule(client=st.sampled_from(GENERATORS), ahead=st.integers(0, 3))
    def reserve(self, client, ahead):
        self.tickets += 1
        call = {"name": "prompts", "ticket": self.tickets, "limit": PROMPTS, "ahead": ahead}
        found = self.driver.ask(client, "reserve", **call)
        if found is None or "group" not in found[0]:
            return
        assert self.driver.ask(client, "reserve", **call)[0] == found[0], "the answer was lost"
        for one in (found[0], *found[0]["more"]):
            group = one["group"]
            assert group not in self.made.keys() | self.reserved.keys(), "an id was used again"
            assert one["number"] not in self.trained, "a trained prompt came again"
            self.reserved[group] = client, one["number"]

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), members=st.integers(1, 3), graded=st.booleans(), late=st.booleans())
    def commit(self, data, members, graded, late):
        group = data.draw(st.sampled_from(list(self.reserved)))
        client = self.reserved[group][0]
        others = [one for one, (owner, _) in self.reserved.items() if owner == client]
        groups = data.draw(st.lists(st.sampled_from(others), max_size=2, unique=True))
        groups = list(dict.fromkeys([group, *groups]))
        numbers = [self.reserved[one][1] for one in groups]
        there = {one for one in groups if one in self.table.groups}
        tokens = {
            one: [np.full((number + m) % 5, one % 10007 * 10 + m, np.int32) for m in range(members)]
            for one, number in zip(groups, numbers, strict=True)
        }
        whole = list(itertools.chain.from_iterable(tokens.values()))
        arrays = {
            "lengths": np.array([len(one) for one in whole], np.int64),
            "tokens": np.concatenate(whole),
            "version": np.full(sum(map(len, whole)), self.version, np.int32),
            "answer": np.array(numbers, np.int32),
        }
        if graded:
            arrays["reward"] = np.repeat(arrays["answer"] % 3, members).astype(np.float32)
        if late:
            client, there = "another", set()
        call = client, "put", arrays
        sent = {"groups": groups, "sizes": [members] * len(groups)}
        said = self.driver.ask(*call, **sent)[0]
        assert set(groups) - there == set(said["late"]), "a late write"
        if not late:
            for one, number in zip(groups, numbers, strict=True):
                del self.reserved[one]
                if one in there:
                    self.made[one] = number, tokens[one]
            # an answer that was lost: the call comes again, and changes nothing
            self.driver.ask(*call, **sent)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), begun=st.booleans())
    def abort(self, data, begun):
        group = data.draw(st.sampled_from(list(self.reserved)))
        client, _ = self.reserved.pop(group)
        self.driver.ask(client, "abort", group=group, reason="aborted", begun=begun)

    @rule(seconds=st.sampled_from([1.0, DEADLINE_S / 2, DEADLINE_S]))
    def expire(self, seconds):
        self.driver.pass_time(seconds)

    @rule(client=st.sampled_from((*GENERATORS, "grader", *RANKS)))
    def kill(self, client):
        self.driver.kill(client)
        self.held.pop(client, None)
        if client in RANKS:
            self.parts += 1
            self.part[client], self.after[client] = self.parts, -1

    # -- the grader --------------------------------------------------------------------------------

    @rule(late=st.booleans())
    def grade(self, late):
        found = self.driver.ask(
            "grader", "claim", needs=["tokens"], give=["reward"], name="", most=2, done=[]
        )
        members = [] if found is None else found[0].get("members", [])
        for i, member in enumerate(members):
            number, tokens = self.made[member >> MEMBER_BITS]
            assert found[1][f"{i}.tokens"].tolist() == (
                tokens[member & ((1 << MEMBER_BITS) - 1)].tolist()
            )
            values = {"index": np.array([member]), "reward": np.array([number % 3], np.float32)}
            self.driver.ask("grader", "update", values)
            self.driver.ask(
                "grader", "claim", needs=["tokens"], give=["reward"], name="", most=0, done=[member]
            )
        if late and self.stale_ids:
            before = self.table.counts.late
            index = np.array(self.stale_ids[-1:], np.int64) << MEMBER_BITS
            self.driver.ask("grader", "update", {"index": index, "reward": np.ones(1, np.float32)})
            assert self.table.counts.late > before

    # -- learners ----------------------------------------------------------------------------------

    @rule(rank=st.integers(0, 1))
    def draw(self, rank):
        client = RANKS[rank % self.world]
        rank %= self.world
        if client in self.held:
            return
        found = self.driver.ask(
            client, "draw", part=self.part[client], after=self.after[client], rank=rank,
            learner=self.learner,
        )  # fmt: skip
        if found is None:
            return
        head, arrays = found
        if "judge" in head:
            kept = [one for one in head["judge"] if arrays[f"{one}.reward"].mean() > 0]
            dropped = [one for one in head["judge"] if one not in kept]
            self.driver.ask(client, "judge", kept=kept, dropped=dropped)
            for group in dropped:
                self.ended.add(self.made[group][0])
            return
        if "end" in head:
            self.over = True
            return
        self.check_batch(head, arrays)
        again = self.driver.ask(  # the answer was lost
            client, "draw", part=self.part[client], after=self.after[client], rank=rank,
            learner=self.learner,
        )  # fmt: skip
        assert again is not None
        assert again[1]["index"].tolist() == arrays["index"].tolist()
        self.after[client] = head["step"]
        self.held[client] = head["step"], sorted(set((arrays["index"] >> MEMBER_BITS).tolist()))

    def check_batch(self, head, arrays):
        groups = (arrays["index"] >> MEMBER_BITS).tolist()
        assert groups, "a rank has an empty part"
        offsets, micro = arrays["offsets"], arrays["micro"]
        assert (np.diff(micro) > 0).all(), "an empty micro-batch"
        assert micro[-1] == len(groups)
        if self.learner["tokens"] is not None and self.world == 1:
            for first, last in itertools.pairwise(micro):
                size = offsets[last] - offsets[first]
                assert size <= self.learner["tokens"] or last - first == 1
        for i, one in enumerate(arrays["index"].tolist()):
            number, tokens = self.made[one >> MEMBER_BITS]
            member = one & ((1 << MEMBER_BITS) - 1)
            values = arrays["tokens"][offsets[i] : offsets[i + 1]]
            assert values.tolist() == tokens[member].tolist(), "tokens of another member"
            assert arrays["answer"][arrays["group"][i]] == number
            assert arrays["reward"][i] == number % 3
            if number not in self.trained:
                assert 0 <= arrays["lag"][i] <= self.settings.max_lag, "over-stale"
        for group in set(groups):
            assert groups.count(group) == len(self.made[group][1]), "a group was split"
            number = self.made[group][0]
            assert number not in self.ended, "an ended prompt was delivered"
            assert self.trained.get(number, group) == group, "a prompt was trained twice"
            if not self.settings.replay:
                assert number not in self.trained, "a prompt was trained twice"

    @precondition(lambda self: self.held)
    @rule(publishes=st.booleans())
    def settle(self, publishes):
        """One rank says that the step is used: it holds for all that have their part."""
        client = sorted(self.held)[0]
        step = self.held[client][0]
        for one, (other, groups) in list(self.held.items()):
            if other == step:
                del self.held[one]
                for group in groups:
                    self.trained[self.made[group][0]] = group
        self.driver.ask(client, "settle", part=self.part[client], step=step, hold=publishes)
        if publishes:
            self.publish(1)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data):
        client = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[client]
        self.driver.ask(client, "give_back", part=self.part[client])
        self.parts += 1
        self.part[client], self.after[client] = self.parts, -1

    @rule(jump=st.sampled_from([1, 1, 1, 2]))
    def publish(self, jump):
        self.version += jump
        self.driver.ask("rank-0", "publish", version=self.version)

    # -- saves -------------------------------------------------------------------------------------

    @rule()
    def save(self):
        model = {
            name: copy.deepcopy(getattr(self, name))
            for name in ("made", "trained", "ended", "version")
        }
        self.saves.append((self.driver.state(), model))

    @precondition(lambda self: self.saves)
    @rule(data=st.data())
    def load(self, data):
        state, model = self.saves[data.draw(st.integers(0, len(self.saves) - 1))]
        made = self.made
        self.driver.load(state)
        for name, value in copy.deepcopy(model).items():
            setattr(self, name, value)
        self.made = made | self.made
        self.stale_ids += list(self.reserved)
        self.held, self.over = {}, False
        self.tickets += 1000
        for client in RANKS:
            self.parts += 1
            self.part[client], self.after[client] = self.parts, -1

    # -- what always holds -------------------------------------------------------------------------

    @property
    def table(self):
        return self.driver.calls.table

    @invariant()
    def slots_are_full_or_held(self):
        if not hasattr(self, "driver"):
            return
        table = self.table
        held = {one.id for one in table.groups.values() if one.state in SLOT and not one.times}
        assert table.holders.keys() == held, "a slot was lost, or given twice"
        assert 0 <= table.free == self.settings.slots - len(held)

    @invariant()
    def each_prompt_is_somewhere_once(self):
        if not hasattr(self, "driver"):
            return
        table = self.table
        ended = {one.prompt.number for one in table.groups.values() if one.times}
        under_way = [one.number for one in table.waiting]
        under_way += [one.prompt.number for one in table.holders.values()]
        assert len(set(under_way)) == len(under_way), "a prompt is there twice"
        assert not set(under_way) & self.trained.keys(), "a trained prompt is under way"
        assert not set(under_way) & self.ended, "an ended prompt is under way"
        assert ended <= self.trained.keys()
        counts = table.counts
        assert counts.trained == len(self.trained), "trained prompts are miscounted"
        assert counts.drawn == counts.trained + counts.ended.total() + len(under_way), "the ledger"
        drawn = table.cursors["prompts"].next if "prompts" in table.cursors else 0
        assert counts.drawn == drawn, "a prompt is lost"

    @invariant()
    def deadlines_run_for_what_is_not_complete(self):
        if not hasattr(self, "driver"):
            return
        table = self.table
        open_ = {
            one.id
            for one in table.groups.values()
            if one.state is State.RESERVED
            or (one.state is State.READY and not one.has(table.needs))
        }
        assert table.open.keys() == open_
        assert all(one.deadline > self.driver.now for one in table.open.values())

    def teardown(self):
        """Everything comes to its end in a bounded number of steps, and all slots are free."""
        if not hasattr(self, "driver"):
            return
        for client in list(self.held):
            self.held.pop(client)
            self.driver.ask(client, "give_back", part=self.part[client])
        for client in (*GENERATORS, "another", *RANKS):
            self.driver.kill(client)
        self.reserved = {}
        for client in RANKS:
            self.parts += 1
            self.part[client], self.after[client] = self.parts, -1
        if not self.returns:
            self.driver.ask("gen-0", "finish", name="prompts")
        for _ in range(40 * PROMPTS):
            self.tickets += 1
            found = None
            if self.returns:
                found = self.driver.ask(
                    "gen-0", "reserve", name="prompts", ticket=self.tickets, limit=PROMPTS
                )
            else:
                self.driver.pass_time(DEADLINE_S / 4)
            if found is not None and "group" in found[0]:
                group, number = found[0]["group"], found[0]["number"]
                arrays = {
                    "lengths": np.array([2, 1], np.int64),
                    "tokens": np.array([group % 10007] * 3, np.int32),
                    "version": np.full(3, self.version, np.int32),
                    "reward": np.full(2, number % 3, np.float32),
                    "answer": np.array([number], np.int32),
                }
                self.driver.ask("gen-0", "put", arrays, groups=[group], sizes=[2])
                self.made[group] = number, [arrays["tokens"][:2], arrays["tokens"][2:]]
            self.grade(False)
            for rank in range(self.world):
                self.draw(rank)
            if self.held:  # a rank may have its part alone: the other one's was trained before
                self.settle(True)
            self.slots_are_full_or_held()
            self.each_prompt_is_somewhere_once()
            if self.over:
                break
        assert self.over, f"stuck: {self.driver.calls.status()}"
        assert self.table.free == self.settings.slots, "slots are lost at rest"
        counts = self.table.counts
        assert counts.drawn == counts.trained + counts.ended.total()
        assert counts.drawn == PROMPTS or not self.returns
