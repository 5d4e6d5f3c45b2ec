"""Rows, contenders, targets, and the runner that interleaves contenders,
each in a process of its own. Times nothing itself.

Only the standard library is imported here: every contender's environment loads the row modules, and
they load this.
"""

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, TextIO

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT_S = 120.0
"""Time for one process beyond its seconds of measurement:
imports on a loaded machine take several seconds.
"""

GRACE_S = 1.0
"""Time for a contender's child processes to end after it:
helpers that wait for their parent's death, as a rule.
"""

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Metric:
    """One figure that every contender of a row reports."""

    key: str
    label: str
    better: Literal["higher", "lower"] = "lower"
    digits: int = 1

    def advantage(self, ours: float, theirs: float) -> float:
        """Return the factor by which `ours` is better."""
        over, under = (ours, theirs) if self.better == "higher" else (theirs, ours)
        return over / under if under else float("inf")

    def best(self, values: Sequence[float]) -> float:
        return max(values) if self.better == "higher" else min(values)


@dataclass(frozen=True)
class Contender:
    """One library in one setting.

    `measure(seconds)` runs in `environment` and returns its figures by metric key.

    `against` names the setting of ours that does the same work; without one it is the row's first
    contender. `once`: for information; no target rests on it, and one run will do.
    """

    name: str
    environment: str
    measure: Callable[[float], Figures]
    against: str | None = None
    once: bool = False


@dataclass(frozen=True)
class Target:
    """A bound: on our figure itself, or, where `theirs` names peers,
    on how many times better we are than their best.
    """

    text: str
    metric: str
    bound: float
    ours: str
    theirs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One workload.

    The first metric is the one that ratios are drawn from; the first contender is ours as it comes.

    `seconds` is what each contender measures for; `repeats` is the most that the row needs, where
    that is little.
    """

    key: str
    title: str
    metrics: tuple[Metric, ...]
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...] = ()
    seconds: float = 1.5
    repeats: int | None = None

    def metric(self, key: str) -> Metric:
        return next(metric for metric in self.metrics if metric.key == key)

    def contender(self, name: str) -> Contender:
        return next(contender for contender in self.contenders if contender.name == name)


@dataclass
class Measured:
    """The report of one contender, a mapping per repeat, or the reason why there is no report."""

    contender: Contender
    repeats: list[Figures] = field(default_factory=list)
    not_measured: str | None = None

    def values(self, metric: str) -> list[float]:
        return [figures[metric] for figures in self.repeats if metric in figures]

    def median(self, metric: str) -> float | None:
        values = self.values(metric)
        return statistics.median(values) if values else None


@dataclass(frozen=True)
class Verdict:
    """A target and its result. `figure` is None if one side was not measured."""

    target: Target
    figure: float | None
    held: bool | None


@dataclass(frozen=True)
class Outcome:
    """A row, the reports of its contenders, and the verdicts on the row's targets."""

    row: Row
    measured: tuple[Measured, ...]

    def of(self, name: str) -> Measured:
        return next(measured for measured in self.measured if measured.contender.name == name)

    def advantage(self, name: str, over: Sequence[str], metric: Metric) -> float | None:
        """Median over the repeats of `name` against the best of `over` in the same repeat."""
        rivals = [self.of(rival).values(metric.key) for rival in over]
        rivals = [values for values in rivals if values]
        pairs = zip(self.of(name).values(metric.key), *rivals, strict=False) if rivals else ()
        ratios = [metric.advantage(ours, metric.best(theirs)) for ours, *theirs in pairs]
        return statistics.median(ratios) if ratios else None

    def ours_for(self, contender: Contender) -> str:
        return contender.against or self.row.contenders[0].name

    def verdicts(self) -> list[Verdict]:
        return [self._judge(target) for target in self.row.targets]

    def _judge(self, target: Target) -> Verdict:
        metric = self.row.metric(target.metric)
        if target.theirs:
            figure = self.advantage(target.ours, target.theirs, metric)
            return Verdict(target, figure, None if figure is None else figure >= target.bound)
        figure = self.of(target.ours).median(target.metric)
        if figure is None:
            return Verdict(target, None, None)
        return Verdict(
            target,
            figure,
            figure <= target.bound if metric.better == "lower" else figure >= target.bound,
        )


class NotMeasured(Exception):
    """A contender gave no figures; the text states the reason."""


def run_row(
    row: Row, module: str, pythons: Mapping[str, Path | str], repeats: int, hurry: float
) -> Iterator[Outcome | str]:
    """Run the contenders A B C A B C; yields the name of each as it starts,
    and the outcome at the end.

    `pythons` holds, per environment, its interpreter, or the reason why there is no interpreter.
    `hurry` scales the seconds measured.
    """
    measured = tuple(Measured(contender) for contender in row.contenders)
    turns = min(repeats, row.repeats or repeats)
    for repeat in range(turns):
        for one in measured:
            if one.not_measured or (one.contender.once and repeat):
                continue
            yield f"{one.contender.name} ({repeat + 1}/{turns})"
            python = pythons[one.contender.environment]
            try:
                if isinstance(python, str):
                    raise NotMeasured(python)
                figures = run_contender(
                    python,
                    module,
                    one.contender.name,
                    row.seconds * hurry,
                    shown=one.contender.environment == "project",
                )
                one.repeats.append(figures)
            except NotMeasured as reason:
                one.not_measured = str(reason)
    yield Outcome(row, measured)


def run_contender(
    python: Path, module: str, name: str, seconds: float, root: Path = ROOT, *, shown: bool = False
) -> Figures:
    """Run one contender of the checkout in `root`, in a process and a session of its own.

    The session lets the processes that the contender leaves behind be counted and ended. Raises
    NotMeasured. ``shown``: pass on what it writes to stderr; a soak says there what it found, and
    how to play it again.
    """
    command = [str(python), "-m", "benchmarks.contender", module, name, str(seconds)]
    paths = [str(root)]
    if python == Path(sys.executable):  # what this interpreter finds, its contenders find too
        paths += filter(None, [os.environ.get("PYTHONPATH")])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore",
    }
    # not pipes: processes that outlive the contender would hold them
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        try:
            process.wait(seconds + TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise NotMeasured(f"still running after {seconds + TIME_LIMIT_S:.0f} s") from None
        finally:
            left = _end_session(process.pid)
            process.wait()
        said, complained = _lines(out), _lines(err)
    if shown and complained:
        print(*complained, sep="\n", file=sys.stderr)
    reported = [line for line in said if line.startswith("{")]
    if not reported:
        reason = re.sub(r"/\S*/", ".../", (complained or ["no output"])[-1])
        raise NotMeasured(f"exit code {process.returncode}: {reason}")
    # Some peers abort at interpreter exit, after they have reported: their figures count, and the
    # exit code is recorded.
    return {
        **json.loads(reported[-1]),
        "left_after_exit": len(left),
        "exit_code": process.returncode,
    }


def _lines(stream: TextIO) -> list[str]:
    stream.seek(0)
    return stream.read().strip().splitlines()


def _end_session(session: int) -> list[int]:
    """Whatever still runs in a session that was started here, after a moment to end by itself,
    and kill it.
    """
    deadline = time.monotonic() + GRACE_S
    while (
        left := [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if _session_of(pid) == session
        ]
    ) and (time.monotonic() < deadline):
        time.sleep(0.02)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _session_of(pid: int) -> int | None:
    """Return the session of a running process; zombies do not count."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(session)
