"""Ctrl-C at any point of a call: raised by a trace function at the n-th point.

# NOTE [points]
CPython runs a signal's handler between two bytecodes, but not between any two: when a function
begins, after a call, and when a loop jumps back. These are the points that are counted and struck,
so a failure here is one that a signal can cause. (One kind is counted beside them: the return of a
Python function into its caller, where CPython may be one point later.) CPython raises there as if
the call had raised. A trace function raises before the next instruction; where that has another
handler, as at the end of a `with`, the point is left out. Points are those of the calling thread,
in files of the package and in those modules of the standard library through which the package
acquires and releases things. Where the package holds signals back (`process_hooks`) there
are none. Garbage is collected between calls, not in them: a finalizer of something else has points
too, and swallows the strike.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import async_loader
from async_loader import process_hooks

PACKAGE = os.path.dirname(os.path.abspath(async_loader.__file__)) + os.sep
_BESIDE = tuple(
    f"{os.sep}{name}.py" for name in ("contextlib", "threading", "weakref", "functools")
)
_BEFORE_A_POINT = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD"}


@dataclass(frozen=True)
class Struck:
    """What became of a call that was struck.

    Attributes
    ----------
    raised : BaseException | None
        What left the call; ``None`` if it returned.
    where : str
        The point, as ``file:line function``; empty if the call ended before it.
    """

    raised: BaseException | None
    where: str


@functools.cache
def _points_of(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions before which a signal may be handled, but for the first."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]

    def handler(offset: int) -> int:
        return next((entry.target for entry in table if entry.start <= offset < entry.end), -1)

    found: set[int] = set()
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "CACHE":
            continue
        if (
            before is not None
            and before.opname in _BEFORE_A_POINT
            and handler(before.offset) == handler(instruction.offset)
        ):
            found.add(instruction.offset)
        before = instruction
    return frozenset(found)


class _Tracer:
    """``strike`` is called with the point ``strike_at``, and may raise."""

    def __init__(self, strike_at: int, strike: Callable[[str], object]) -> None:
        self._left, self._strike = strike_at, strike
        self.seen = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        name = frame.f_code.co_filename
        if not (name.startswith(PACKAGE) or name.endswith(_BESIDE)):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        # else Python 3.13 traces the opcodes of this code from its next call on
        frame.f_trace = self._local
        # one that is being dropped would swallow the error
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            self._pass(frame)
        return self._local

    def _local(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode" and frame.f_lasti in _points_of(frame.f_code):
            self._pass(frame)
        return self._local

    def _pass(self, frame: FrameType) -> None:
        if process_hooks._section is not None or frame.f_code.co_filename == process_hooks.__file__:
            return
        self.seen += 1
        if self.seen == self._left:
            code = frame.f_code
            self.where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"
            self._strike(self.where)


def _trace(tracer: _Tracer) -> None:
    # from Python 3.12 on, opcodes are traced only if some frame asked for it before
    sys._getframe().f_trace_opcodes = True
    sys.settrace(tracer)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_uncollected()
def strike(
    call: Callable[[], Any],
    at: int,
) -> Struck:
    """Run ``call`` in this thread, and raise KeyboardInterrupt at its point ``at``, counted from 1.

    Whatever else the call raises is in the answer too; an error that is not the strike is for the
    test to judge.
    """

    def fails(where: str) -> None:
        raise KeyboardInterrupt(f"struck at {where}")

    return _struck(call, _Tracer(at, fails))


def _struck(call: Callable[[], Any], tracer: _Tracer) -> Struck:
    before = sys.gettrace()
    _trace(tracer)
    try:
        call()
    except BaseException as raised:
        sys.settrace(before)
        return Struck(raised, tracer.where)
    finally:
        sys.settrace(before)
    return Struck(None, tracer.where)


@_uncollected()
def count_points(call: Callable[[], Any]) -> int:
    """How many points ``call`` passes; it is run once."""
    tracer = _Tracer(0, str)
    before = sys.gettrace()
    _trace(tracer)
    try:
        call()
    finally:
        sys.settrace(before)
    return tracer.seen


def some_points(total: int, most: int, seed: int = 0) -> list[int]:
    """All points from 1 to ``total`` if these are no more than ``most``, or a seeded sample of
    them, in order.
    """
    points = range(1, total + 1)
    return list(points) if total <= most else sorted(random.Random(seed).sample(points, most))
