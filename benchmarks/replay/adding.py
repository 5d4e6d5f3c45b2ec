"""Adding small steps, one or one of each of many environments:
what rows add and extend have in common. Draws nothing.

Every contender is given what its call wants, made beforehand; only the call is timed. The tables
are full, so that each step makes room for itself and no page is new. The steps are random numbers.
Every 900th ends its episode: one call in 900 does, or in 14 where each adds 64 steps. Streams are
named anew in each call, as programs do.
"""

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row
from benchmarks.measure import time_calls
from benchmarks.replay import tables, workloads

WORK = workloads.Small(128 * 1024)


def _vectors(width: int) -> list[workloads.Columns]:
    """Return different steps, which take turns; some end episodes."""
    return WORK.vectors(width, max(256, workloads.EPISODE // width))


def _time(add: Callable[[Any], Any], steps: list[Any], seconds: float, width: int) -> Figures:
    for step in steps:
        add(step)
    turns = cycle(steps)
    figures = time_calls(lambda: add(next(turns)), seconds)
    return {**figures, "steps_per_s": width / figures["us"] * 1e6}


def _steps(width: int) -> list[workloads.Columns]:
    """As environments give them: arrays of `width` rows,
    or for one environment without that dimension.
    """
    steps = _vectors(width)
    return (
        steps
        if width > 1
        else [{name: column[0] for name, column in step.items()} for step in steps]
    )


def ours(seconds: float, width: int, linked: bool = False) -> Figures:
    buffer = (tables.ours_linked if linked else tables.ours)(WORK)
    steps = _steps(width)
    if linked:
        steps = [
            {name: value for name, value in step.items() if name != "next_obs"} for step in steps
        ]
    if width == 1:
        return _time(buffer.add, steps, seconds, width)
    return _time(lambda step: buffer.extend(step, stream=list(range(width))), steps, seconds, width)


def cpprb(seconds: float, width: int) -> Figures:
    buffer = tables.cpprb(WORK)
    return _time(
        lambda step: buffer.add(**step),
        [tables.for_cpprb(step) for step in _steps(width)],
        seconds,
        width,
    )


def torchrl(seconds: float, width: int) -> Figures:
    buffer = tables.torchrl(WORK, workloads.BATCH)
    steps = [tables.for_torchrl(step) for step in _vectors(width)]
    if width == 1:
        return _time(buffer.add, [step[0] for step in steps], seconds, width)
    return _time(buffer.extend, steps, seconds, width)


def sb3(seconds: float, width: int) -> Figures:
    buffer = tables.sb3(WORK) if width == 1 else tables.sb3_empty(WORK, n_envs=width)
    infos: list[dict[str, Any]] = [{}] * width
    steps = [
        (step["obs"], step["next_obs"], step["action"], step["reward"], step["terminated"], infos)
        for step in _vectors(width)
    ]
    for _ in range(0 if width == 1 else WORK.rows // width):
        buffer.add(*steps[0])
    return _time(lambda step: buffer.add(*step), steps, seconds, width)


def rlox(seconds: float, width: int) -> Figures:
    buffer = tables.rlox(WORK)
    if width > 1:
        steps = [tables.for_rlox(step) for step in _vectors(width)]
        return _time(lambda step: buffer.push_batch(**step), steps, seconds, width)
    one = [
        (step["obs"], step["action"], float(step["reward"]), bool(step["terminated"]), False,
         step["next_obs"])
        for step in _steps(width)
    ]  # fmt: skip
    return _time(lambda step: buffer.push(*step), one, seconds, width)


def row(key: str, title: str, width: int) -> Row:
    def contender(
        name: str, environment: str, measure: Callable[..., Figures], **options: Any
    ) -> Contender:
        return Contender(name, environment, partial(measure, width=width, **options))

    return Row(
        key,
        title,
        (
            Metric("us", "us a call"),
            Metric("steps_per_s", "steps/s", "higher", digits=0),
            Metric("cpu_us", "CPU us a call"),
        ),
        (
            contender("async_loader", "project", ours),
            contender("async_loader, linked next_obs", "project", ours, linked=True),
            contender("cpprb", "replay-peers", cpprb),
            contender("torchrl", "replay-peers", torchrl),
            contender("stable-baselines3", "replay-peers", sb3),
            contender("rlox", "rlox", rlox),
        ),
    )
