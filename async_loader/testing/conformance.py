"""Conformance checks for sources and readers, to call from your own tests. Needs no test framework.

    def test_my_source_keeps_the_contract():
        check_source(lambda: MySource(...), batch_size=32)
        check_waiting(lambda: MySource(...nothing in it yet), batch_size=32)

Each check makes new sources and raises `NotConforming`, an AssertionError that names the broken
rule. The rules are those in the docstrings of `async_loader.source`.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import CannotSend, Closed, Timeout, Unsupported
from async_loader.lifecycle import Deadline, EndFlag, Patience
from async_loader.pipeline import codec
from async_loader.public_names import set_public_names
from async_loader.schema import Schema
from async_loader.source import (
    END,
    Applied,
    Jobs,
    Plan,
    Reader,
    Ready,
    Rows,
    Samples,
    Seed,
    Source,
    waiting_for,
)

__all__ = [
    "MakeSource",
    "NotConforming",
    "check_plan",
    "check_reader",
    "check_source",
    "check_travel",
    "check_update_priorities",
    "check_waiting",
]
set_public_names(globals())

SEED: Seed = (1, 2, 3)
_PATIENCE_S = 30.0
_BLOCKED_S = 5.0
_POISONS = (0xFF, 0x5A)

MakeSource = Callable[[], Source]


class NotConforming(AssertionError):
    """A rule of the protocol is broken."""


def check_source(
    make_source: MakeSource, batch_size: int = 8, *, seeded: bool = False, workers: bool = True
) -> None:
    """Run all checks for a source that has data.

    Parameters
    ----------
    make_source : callable
        Makes a source that can plan at least three batches at once.
    batch_size : int
        At least 2.
    seeded : bool
        Whether the data read depends on the seed (augmentation): then batches cut differently may
        differ.
    workers : bool
        Whether the source supports worker processes; then readers and jobs must be picklable.
    """
    check_plan(make_source, batch_size)
    check_update_priorities(make_source, batch_size)
    check_reader(make_source, batch_size, seeded=seeded)
    if workers:
        check_travel(make_source, batch_size)


def check_plan(make_source: MakeSource, batch_size: int = 8) -> None:
    """`plan` repeatedly gives legal plans of batch_size entries, and is not waiting afterwards."""
    source = make_source()
    _demand(isinstance(source, Source), f"{source!r} lacks plan, reader or update_priorities")
    for size in (batch_size, batch_size, 1):
        plan = source.plan(size, _patience())
        _check_plan(plan, size)
        waiting = waiting_for(source)
        _demand(
            plan is END or waiting is None,
            f"plan has returned, and waiting_for still says {waiting!r}",
        )


def _check_plan(plan: Plan, batch_size: int) -> None:
    if plan is END:
        return
    _demand(
        isinstance(plan, Rows | Jobs | Samples | Ready),
        f"plan returned {plan!r}: give Rows, Jobs, Samples, Ready or END",
    )
    if isinstance(plan, Ready):
        _demand(
            isinstance(plan.batch, Mapping),
            f"Ready.batch is {type(plan.batch).__name__}: give a mapping",
        )
        return
    assert isinstance(plan, Rows | Jobs | Samples)
    _demand(len(plan) == batch_size, f"plan({batch_size}) has {len(plan)} entries")
    if isinstance(plan, Rows):
        good = (
            isinstance(plan.index, np.ndarray)
            and plan.index.dtype == np.int64
            and plan.index.ndim in (1, 2)
        )
        _demand(good, f"Rows.index is {plan.index!r}: give an int64 array [rows] or [rows, words]")
    elif isinstance(plan, Jobs):
        _demand(all(map(callable, plan.calls)), "Jobs.calls holds something that cannot be called")


def check_update_priorities(make_source: MakeSource, batch_size: int = 8) -> None:
    """`update_priorities` accounts for every given row, from any thread, or raises Unsupported."""
    source = make_source()
    plan = source.plan(batch_size, _patience())
    index = plan.index if isinstance(plan, Rows) else np.arange(batch_size, dtype=np.int64)
    index = index if index.ndim == 1 else index[:, 0]
    for ids in (index, index[:0]):
        outcome = _in_thread(functools.partial(source.update_priorities, ids, np.ones(len(ids))))
        if isinstance(outcome, Unsupported):
            return
        if isinstance(outcome, BaseException):
            raise NotConforming(
                f"update_priorities raised {outcome!r}: apply, count as stale, or raise Unsupported"
            ) from outcome
        _demand(
            isinstance(outcome, Applied),
            f"update_priorities returned {outcome!r}: give Applied(applied, stale)",
        )
        total = outcome.applied + outcome.stale
        _demand(
            total == len(ids),
            f"update_priorities got {len(ids)} rows and accounts for {total} as applied or stale",
        )


def check_reader(make_source: MakeSource, batch_size: int = 8, *, seeded: bool = False) -> None:
    """`reader` reads the requested rows and no others, into the given window,
    with the same result every time.
    """
    source = make_source()
    plan = source.plan(batch_size, _patience())
    if not isinstance(plan, Rows):
        return
    reader, index = _reader_of(source), plan.index
    schema = reader.schema
    _demand(
        schema is None or isinstance(schema, Schema),
        f"the reader's schema is {schema!r}: give a Schema, or None",
    )
    _demand(reader.schema == schema, "the reader's schema changes from one look to the next")
    whole, _ = _read(reader, index)
    for poison in _POISONS:
        _demand(
            _read(reader, index, poison=poison)[0] == whole,
            "read leaves bytes unwritten, or reads something else each time",
        )
    rows, half = len(index), len(index) // 2
    alone = [(i, i + 1) for i in range(rows)]
    for cuts in () if seeded else (alone, [(half, rows), (0, half)]):
        parts, memory = _read(reader, index, cuts)
        _demand(parts == whole, f"rows {cuts} read part by part differ from the whole")
        _demand(memory == _read(reader, index)[1], f"reading rows {cuts} writes outside of them")


def check_travel(make_source: MakeSource, batch_size: int = 8) -> None:
    """Readers and jobs can be sent to another process, and a reader reads the same data there."""
    source = make_source()
    plan = source.plan(batch_size, _patience())
    if isinstance(plan, Jobs):
        try:
            codec.encode(list(plan.calls))
        except CannotSend as error:
            raise NotConforming(f"the jobs cannot be sent to a worker: {error}") from error
    if not isinstance(plan, Rows):
        return
    reader = _reader_of(source)
    here = _read(reader, plan.index)
    _demand(here == _read(_sent(reader), plan.index), "a reader that was sent reads otherwise")
    _demand(
        here == _read(reader, plan.index), "the reader reads something else after it was pickled"
    )


def check_waiting(make_source: MakeSource, batch_size: int = 8, *, local: bool = True) -> None:
    """`plan` waits through its patience only: the wait ends with the end flag and at the deadline.

    Parameters
    ----------
    make_source : callable
        Makes a source without data, so that `plan` waits.
    local : bool
        Whether only adding data in this process ends the wait; then `waiting_for` must report it.
    """
    _check_ends_with_the_flag(make_source(), batch_size, local)
    source = make_source()
    outcome = _in_thread(lambda: source.plan(batch_size, Patience(deadline=Deadline(0.05))))
    _demand(
        isinstance(outcome, Timeout), f"at its deadline plan gave {outcome!r}: let Timeout through"
    )


def _check_ends_with_the_flag(source: Source, batch_size: int, local: bool) -> None:
    end, turned = EndFlag(), threading.Event()
    patience = Patience(end, Deadline(_PATIENCE_S), on_wait=turned.set)
    outcome: list[Any] = []
    thread = _start(lambda: source.plan(batch_size, patience), outcome, turned.set)
    try:
        _demand(turned.wait(_BLOCKED_S), "plan blocks by other means than patience.wait")
        _demand(
            not outcome,
            f"plan should have waited, it gave {outcome}: the source must have nothing to give",
        )
        reason = waiting_for(source)
        _demand(
            reason is None or (isinstance(reason, str) and reason != ""),
            f"waiting_for gave {reason!r}: a text, or None",
        )
        _demand(
            not local or reason is not None,
            "plan waits for data from this process, and waiting_for says None",
        )
    finally:
        end.set()
        thread.join(_BLOCKED_S)
    _demand(not thread.is_alive(), "the end flag is up, and plan still waits")
    _demand(
        isinstance(outcome[0], Closed),
        f"when the end flag went up plan gave {outcome[0]!r}: let Closed through",
    )


# -- reading ---------------------------------------------------------------------------------------


def _reader_of(source: Source) -> Reader:
    reader = source.reader()
    if reader is None:
        raise NotConforming("plan gives Rows, and reader() gives None to read them")
    again = source.reader()
    _demand(
        again is not None and again.schema == reader.schema,
        "reader() gives readers of different schemas",
    )
    return reader


def _read(
    reader: Reader,
    index: npt.NDArray[np.int64],
    cuts: Sequence[tuple[int, int]] = (),
    poison: int = 0,
) -> tuple[Any, bytes]:
    """Return what a reader reads of these parts of the index, in a form that can be compared, and
    all of the memory that it was given, which held one byte before.
    """
    schema, cuts = reader.schema, cuts or [(0, len(index))]
    if schema is None:
        parts = {start: reader.fetch(index[start:stop], SEED) for start, stop in cuts}
        samples = [sample for start in sorted(parts) for sample in parts[start]]
        _demand(
            len(samples) == len(index),
            f"fetch got {len(index)} rows and returned {len(samples)} samples",
        )
        structure = tree.structure_of(samples)
        return (structure, list(map(_comparable, tree.leaves(samples, structure)))), b""
    layout = BatchLayout.contiguous(schema, len(index))
    root = np.full(layout.nbytes, poison, np.uint8)
    for start, stop in cuts:
        part = index[start:stop].copy()
        result: Any = reader.read(part, layout.window(root, start, stop), SEED)  # type: ignore[func-returns-value]
        _demand(
            result is None,
            f"read returned {type(result).__name__}: it fills the window and returns nothing",
        )
        _demand(np.array_equal(part, index[start:stop]), "read changes the index that it is given")
    # as bytes: nan equals itself, and 0.0 differs from -0.0
    return [view.tobytes() for view in layout.views(root)], root.tobytes()


def _comparable(leaf: Any) -> Any:
    array = tensors.as_array(leaf)
    if array is not None:
        return array.dtype, array.shape, array.tobytes()
    return repr(leaf) if isinstance(leaf, str | bytes | int | float | complex) else type(leaf)


def _sent(reader: Reader) -> Reader:
    """Return the reader as a worker process gets it."""
    try:
        encoded = codec.encode(reader)
        found: Reader = codec.decode(encoded.head, fds=[os.dup(fd) for fd in encoded.fds])
    except Exception as error:  # whatever its pickling raises
        raise NotConforming(f"the reader cannot be sent to a worker: {error}") from error
    return found


# -- helpers --------------------------------------------------------------------------------------


def _demand(condition: bool, text: str) -> None:
    if not condition:
        raise NotConforming(text)


def _patience() -> Patience:
    return Patience(EndFlag(), Deadline(_PATIENCE_S))


def _in_thread(call: Callable[[], Any]) -> Any:
    """Return the result of the call in another thread, or its exception."""
    outcome: list[Any] = []
    thread = _start(call, outcome)
    thread.join(_PATIENCE_S)
    _demand(not thread.is_alive(), f"a call did not return within {_PATIENCE_S:g} s")
    return outcome[0]


def _start(
    call: Callable[[], Any], outcome: list[Any], done: Callable[[], None] = lambda: None
) -> threading.Thread:
    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # the top of a thread: passed on to the caller
            outcome.append(error)
        done()

    thread = threading.Thread(target=run, name="conformance", daemon=True)
    thread.start()
    return thread
