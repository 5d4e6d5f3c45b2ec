"""One round: processes are started, befallen by what a plan says, left to get well, brought to
their end, and judged.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from history import History
from plan import Act, Plan
from proxy import Proxy

from async_loader.feeder.curve_keys import make_keys

HERE = Path(__file__).parent
KILL = signal.SIGKILL
AT_ONCE = 5
"""Rounds."""
PATIENCE_S = 120.0
"""For what has to happen when all is well; two shared cores may be busy with other things."""


class Child:
    """A process of a round, and what it says: lines of JSON."""

    def __init__(self, zygote, folder: Path, name: str, role: str, options: dict):
        self.name, self.role = name, role
        self.dead = self.stopped = False
        self.process = zygote.start(str(HERE / "role.py"), (role, json.dumps(options)), str(folder))
        self.pid = self.process.pid
        self._buffer = b""
        self._heard: dict[str, list] = {}

    def has_said(self, word: str) -> bool:
        """Whether it has by now."""
        while word not in self._heard and select.select([self.process.stdout], [], [], 0)[0]:
            self.hear(word)
        return word in self._heard

    def hear(self, word: str) -> list:
        """Wait until it says so, if it has not yet."""
        fd, deadline = self.process.stdout.fileno(), time.monotonic() + PATIENCE_S
        while word not in self._heard:
            line, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                said = json.loads(line)
                self._heard[said[0]] = said[1:]
                continue
            left = max(0.0, deadline - time.monotonic())
            assert select.select([fd], [], [], left)[0], (
                f"{self.name} never said {word!r}: it hangs"
            )
            data = os.read(fd, 65536)
            assert data, f"{self.name} ended without saying {word!r}:\n{self.errors()}"
            self._buffer += data
        return self._heard[word]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self, number: int = KILL) -> None:
        """And wait until it is dead."""
        if not self.dead:
            self.dead = True
            self.signal(number)
            self.process.wait(PATIENCE_S)

    def end(self) -> int:
        self.dead = True
        return self.process.wait(PATIENCE_S)

    def errors(self) -> str:
        self.kill()
        return self.process.stderr.read().decode()

    def close(self) -> None:
        self.kill()
        self.process.stdout.close()
        self.process.stderr.close()


class Round:
    """Everything of one round. ``with`` sees to it that nothing of it is left.

    Parameters
    ----------
    zygote : Zygote
    folder : Path
        Empty.
    plan : Plan
    sabotage : sequence of str
        See `sabotages`.
    """

    def __init__(self, zygote, folder: Path, plan: Plan, sabotage=()):
        self._zygote, self._folder, self.plan, self._sabotage = zygote, folder, plan, list(sabotage)
        self.proxy = Proxy()
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.proxy.close)
        self._keys = str(folder / "keys") if plan.keyed else ""
        if plan.keyed:
            make_keys(folder / "keys", ["client"])
        self._actors: list[Child] = []
        self._learners: list[Child] = []
        self._server: Child | None = None
        self._servers = self._numbers = 0
        self._kills = 0
        self._leaving: list[Child] = []
        self.incarnation = ""
        self.dump: dict[str, np.ndarray] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    # -- processes ---------------------------------------------------------------------------------

    def _start(self, name: str, role: str, **options) -> Child:
        at = (
            f"ipc://{self._folder}/at"
            if self.plan.shared
            else f"tcp://127.0.0.1:{self.proxy.ports['control']}"
        )
        common = {
            "folder": str(self._folder),
            "name": name,
            "address": at,
            "mode": self.plan.mode,
            "keys": self._keys,
            "shared": self.plan.shared,
        }
        child = Child(self._zygote, self._folder, name, role, {**common, **options})
        self._stack.callback(child.close)
        return child

    def start_server(self) -> None:
        self._servers += 1
        self._server = self._start(
            f"server{self._servers}",
            "server",
            sabotage=self._sabotage,
            size=self.plan.queue_size,
            proxy=self.proxy.ports,
            dump=self._dump_path(),
        )
        ports, self.incarnation = self._server.hear("ready")
        self.proxy.serve(ports)

    def _dump_path(self) -> str:
        return str(self._folder / f"table{self._servers}.npz")

    def start_actor(self) -> None:
        number = self._numbers
        self._numbers += 1
        seed, drops = self.plan.seed * 100 + number, number in self.plan.drops
        self._actors.append(
            self._start(
                f"actor{number}",
                "actor",
                number=number,
                seed=seed,
                rows=self.plan.rows,
                drops=drops,
            )
        )

    def start_learner(self, batch: int | None = None, until: str = "") -> Child:
        queue = self.plan.mode == "queue"
        pause_s, more = (0.0, 0) if queue else (0.005, 3)
        name = f"learner{len(self._learners)}"
        learner = self._start(
            name,
            "learner",
            batch=batch or self.plan.batch,
            until=until,
            pause_s=pause_s,
            more=more,
            left_s=self.plan.left_s,
            seed=self.plan.seed,
        )
        self._learners.append(learner)
        return learner

    # -- faults ------------------------------------------------------------------------------------

    def act(self, act: Act) -> None:
        """Do what the plan says now."""
        if act.name in ("cut", "forget"):
            getattr(self.proxy, act.name)(*act.args)
        elif act.name == "heal":
            self.proxy.heal(*act.args)
        elif act.name == "weather":
            plane, name, value = act.args
            value = {"dead": set, "cut_after": lambda pair: dict([pair])}.get(
                name, lambda same: same
            )(value)
            self.proxy.change(plane, **{name: value})
        else:
            verb, _, who = act.name.partition("_")
            getattr(self, f"_{verb}")(who, *act.args)

    def _of(self, who: str) -> list[Child]:
        assert self._server is not None
        every = {"actor": self._actors, "learner": self._learners, "server": [self._server]}[who]
        return [child for child in every if not child.dead]

    def _kill(self, who: str, which: int) -> None:
        child = self._of(who)[which % len(self._of(who))]
        gently = who != "server" and which % 2 and not child.stopped
        child.kill(signal.SIGTERM if gently else KILL)
        self._kills += who == "learner"
        if who == "server":
            self.proxy.serve({})
            self.start_server()
        else:
            self.start_actor() if who == "actor" else self.start_learner()

    def _leave(self, who: str, which: int) -> None:
        """A learner closes its loader in good order, and another one comes."""
        staying = [
            child
            for child in self._of(who)
            if child not in self._leaving and child.has_said("ready")
        ]
        if staying:
            self._leaving.append(staying[which % len(staying)])
            self._leaving[-1].signal(signal.SIGUSR1)
        self.start_learner()

    def _stop(self, who: str, which: int) -> None:
        child = self._of(who)[which % len(self._of(who))]
        child.signal(signal.SIGSTOP)
        child.stopped = True

    def _continue(self, who: str) -> None:
        for child in self._of(who):
            if child.stopped:
                child.signal(signal.SIGCONT)
                child.stopped = False

    # -- a round -----------------------------------------------------------------------------------

    def play(self) -> None:
        """From the start to the last word of everybody."""
        self.start_server()
        for _ in range(self.plan.learners):
            self.start_learner()
        for _ in range(self.plan.actors):
            self.start_actor()
        for child in (*self._actors, *self._learners):
            child.hear("ready")
        began = time.monotonic()
        for act in self.plan.acts:
            self._until(began + act.at)
            self.act(act)
        self._heal()
        self._finish()

    def _until(self, at: float) -> None:
        """The moment of the next act; no process may end before it is told."""
        poll = select.poll()
        for child in (*self._actors, *self._learners, self._server):
            if child is not None and not child.dead:
                poll.register(child.process.stderr.fileno(), select.POLLIN)
        # warnings and tracebacks are looked at in the end
        poll.poll(max(0.0, at - time.monotonic()) * 1000)

    def _heal(self) -> None:
        self.proxy.heal()
        for who in ("actor", "learner", "server"):
            self._continue(who)

    def _finish(self) -> None:
        """Actors first, while learners make room for what they have; then learners, and what
        these have left; then the server.
        """
        self._end([child for child in self._actors if not child.dead])
        self._end([child for child in self._learners if not child.dead])
        if self.plan.mode == "queue":
            history = self.history()
            path = self._folder / "left.json"
            path.write_text(json.dumps(sorted(history.due(self.incarnation) - history.uses.keys())))
            self._end([self.start_learner(1, str(path))], ask=False)
        assert self._server is not None
        if self.plan.shared:
            self._check_unmapped(self._server)
        self._server.signal(signal.SIGTERM)
        self._over(self._server)
        with np.load(self._dump_path()) as dump:
            self.dump = dict(dump)

    def _check_unmapped(self, server: Child) -> None:
        """Memory of learners goes with them; that of those who were killed, when they were
        silent for long enough.
        """
        maps, deadline = Path(f"/proc/{server.pid}/maps"), time.monotonic() + PATIENCE_S
        while left := maps.read_text().count("memfd:learner"):
            assert time.monotonic() < deadline, (
                f"the server still maps the memory of {left} learners that are gone"
            )
            select.select([server.process.stderr], [], [], 0.05)

    def _end(self, children: list[Child], ask: bool = True) -> None:
        for child in children:
            child.hear("ready")
            if ask:
                child.signal(signal.SIGUSR1)
        for child in children:
            self._over(child)

    def _over(self, child: Child) -> None:
        child.hear("done")
        code, errors = child.end(), child.process.stderr.read().decode()
        assert code == 0, f"{child.name} ended with {code}"
        assert not errors, f"{child.name} wrote to stderr:\n{errors}"

    def history(self) -> History:
        return History(self._folder, self.plan.drops)

    def verdict(self) -> list[str]:
        """What is wrong."""
        history = self.history()
        if self.plan.shared and history.transports != {"shm"}:
            return [f"batches were to come in shared memory, they came in {history.transports}"]
        if self.plan.mode != "queue":
            return history.check_table(self.dump, self.incarnation)
        left = {tuple(pair) for pair in self.dump["held"].tolist()}
        if len(self.dump["ids"]):
            left.update(
                zip(*(self.dump[name].tolist() for name in ("actor", "value")), strict=True)
            )
        # A process that stood still for longer than a session may be silent was befallen by
        # something, too.
        kept = all(
            count == 1 for who, count in history.sessions.items() if who.startswith("learner")
        )
        alone = kept and not self._kills and not self.dump["came_back"]
        cut = any(
            act.name in ("cut", "forget", "weather") and act.args[0] in ("pull", "control")
            for act in self.plan.acts
        )
        return history.check_uses(self.incarnation, left, alone and not cut and self._servers == 1)


def play(zygote, folder: Path, plan: Plan, sabotage=()) -> tuple[list[str], History]:
    """Play a round; what is wrong, in words, and what was seen."""
    with Round(zygote, folder, plan, sabotage) as one:
        one.play()
        return one.verdict(), one.history()


@dataclass(frozen=True)
class Outcome:
    """What became of a round: what is wrong, how long it took, what was seen if it came to its
    end.
    """

    plan: Plan
    wrong: list[str]
    seconds: float
    seen: History | None = None

    def __str__(self) -> str:
        again = f"again: {Path(sys.executable).name} tests/feeder/chaos/play.py {self.plan.seed}"
        return "\n".join([str(self.plan), *self.wrong[:20], again if self.plan.seed >= 0 else ""])


def played(zygote, plan: Plan, sabotage=()) -> Outcome:
    """Play a round in a folder of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            wrong, seen = play(zygote, Path(folder), plan, sabotage)
        except AssertionError as error:
            return Outcome(plan, [str(error)], time.monotonic() - began)
        return Outcome(plan, wrong, time.monotonic() - began, seen)


def play_many(
    zygote, plans: Iterable[Plan], at_once: int = AT_ONCE, sabotage=()
) -> Iterator[Outcome]:
    """Several rounds at the same time, since they wait most of theirs; in the order of the
    plans.
    """
    with ThreadPoolExecutor(at_once, "chaos-round") as pool:
        yield from pool.map(lambda plan: played(zygote, plan, sabotage), plans)
