"""Loads, stores, fences and copies at an address, and the addresses of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NBYTES,
    ROW_ADDRESS,
    ROW_STRIDE,
)
from async_loader.replay.base.row_format import BASE, ID, ROWS, STRIDE

AHEAD = 12
"""Items, from the request of a row to its first use."""
_LINE = 64  # bytes


@kernel(inline=True)
def holds(address: int, name: int) -> bool:
    return load(address + ID) == name + 1  # fresh memory is all zeros, and holds nothing


@kernel(inline=True)
def at(g: Any, name: int) -> Any:
    """Return the address of the row of an id."""
    return g[BASE] + (name % g[ROWS]) * g[STRIDE]


@kernel(inline=True)
def there(g: Any, name: int) -> bool:
    return name >= 0 and holds(at(g, name), name)


# A kernel that stores cannot know that ``g[ROWS]`` stays as it is, and so divides by it again for
# each use of a row; 19 divisions are three quarters of writing a small row. It divides once and
# passes the row on.


@kernel(inline=True)
def at_row(g: Any, row: int) -> Any:
    """Return the address of a row."""
    return g[BASE] + row * g[STRIDE]


@kernel(inline=True)
def there_at(g: Any, name: int, row: int) -> bool:
    """As `there`, where the row of the id is known."""
    return name >= 0 and holds(at_row(g, row), name)


@kernel(inline=True)
def neighbour(row: int, name: int, other: int, rows: int) -> int:
    """Return the row of the id ``other``, from the row of the id ``name``: a division takes longer
    than to read a small row.
    """
    found = row + (other - name)
    if found >= rows:
        found -= rows
    elif found < 0:
        found += rows
    return found if 0 <= found < rows else other % rows


@kernel(inline=True)
def fetch(address: int, stride: int) -> None:
    """Begin to load a packed row.

    With 12 of them under way all the time 256 random rows of 200 MB take 9 us, and 4096 take 140;
    with all of a block of 64 requested at once about twice as long.
    """
    for line in range(0, stride, _LINE):
        prefetch(address + line)


@kernel(inline=True)
def fetch_run(g: Any, row: int, step: int, first: int, last: int, nbytes: int) -> None:
    """Begin to load rows of a stream, from the ``first`` to the ``last`` after ``row``: they mostly
    lie ``step`` rows from each other.
    """
    for ahead in range(first, last + 1):
        place = row + ahead * step
        if 0 <= place < g[ROWS]:
            fetch(g[BASE] + place * g[STRIDE], nbytes)


@kernel(inline=True)
def put_row(fields: Any, block: int, i: int, row: int) -> None:
    """Copy step ``i`` of the arrays of ``fields``, ``block`` bytes after their addresses, into a
    row.
    """
    for f in range(len(fields)):
        copy(
            fields[f, ROW_ADDRESS] + row * fields[f, ROW_STRIDE],
            fields[f, ARRAY_ADDRESS] + block + i * fields[f, ARRAY_STRIDE],
            fields[f, NBYTES],
        )


@kernel(inline=True)
def get_row(fields: Any, i: int, row: int, block: int) -> None:
    """Copy a row into place ``i`` of the arrays of ``fields``, whose addresses count from
    ``block``.
    """
    for f in range(len(fields)):
        copy(
            block + fields[f, ARRAY_ADDRESS] + i * fields[f, ARRAY_STRIDE],
            fields[f, ROW_ADDRESS] + row * fields[f, ROW_STRIDE],
            fields[f, NBYTES],
        )


# its type says that what it makes is called with the typing context
intrinsic: Any = extending.intrinsic
_WORD = ir.IntType(64)


Emit = Callable[[Any, Any], Any]


def _value(emit: Emit) -> Any:
    """Make what numba calls for an intrinsic with a value: ``emit(builder, arguments)``."""
    return lambda context, builder, signature, arguments: emit(builder, arguments)


def _nothing(emit: Emit) -> Any:
    """As `_value`, for an intrinsic without a value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit(builder, arguments)
        return context.get_dummy_value()

    return generate


def _at(builder: Any, address: Any, kind: Any = _WORD) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def load(typingctx: Any, address: Any) -> Any:
    """Load 8 aligned bytes, before all later loads."""
    return types.int64(types.int64), _value(
        lambda builder, given: builder.load_atomic(_at(builder, given[0]), "acquire", 8)
    )


@intrinsic
def store(typingctx: Any, address: Any, value: Any) -> Any:
    """Store 8 aligned bytes, after all earlier stores."""
    return types.void(types.int64, types.int64), _nothing(
        lambda builder, given: builder.store_atomic(given[1], _at(builder, given[0]), "release", 8)
    )


def _fence(ordering: str) -> Any:
    """Make a fence."""

    @intrinsic
    def fence(typingctx: Any) -> Any:
        return types.void(), _nothing(lambda builder, _: builder.fence(ordering))

    return fence


before_stores = _fence("release")
"""Order all earlier stores before all later ones."""

after_loads = _fence("acquire")
"""Order all earlier loads before all later ones."""


@intrinsic
def _memcpy(typingctx: Any, target: Any, source: Any, count: Any) -> Any:
    def emit(builder: Any, given: Any) -> None:
        to, start = (builder.inttoptr(address, cgutils.voidptr_t) for address in given[:2])
        cgutils.raw_memcpy(builder, to, start, given[2], 1)

    return types.void(types.int64, types.int64, types.int64), _nothing(emit)


@intrinsic
def memzero(typingctx: Any, target: Any, count: Any) -> Any:
    def emit(builder: Any, given: Any) -> None:
        cgutils.memset(builder, builder.inttoptr(given[0], cgutils.voidptr_t), given[1], 0)

    return types.void(types.int64, types.int64), _nothing(emit)


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Begin to load the cache line at this address, into the second cache.

    More loads can be under way to there than to the first: 256 random rows take 9 us in place of
    14.
    """

    def emit(builder: Any, given: Any) -> None:
        number = ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
        hints = [ir.Constant(number, hint) for hint in (0, 2, 1)]  # to read, L2, data
        builder.call(function, [builder.inttoptr(given[0], cgutils.voidptr_t), *hints])

    return types.void(types.int64), _nothing(emit)


def _access(bits: int, real: bool = False) -> tuple[Any, Any]:
    """Make a load and a store of a number of this many bits at any address; the value is an int64,
    or a float64.
    """
    wide, value_type = (ir.DoubleType(), types.float64) if real else (_WORD, types.int64)
    item = wide if bits == 64 else ir.FloatType() if real else ir.IntType(bits)
    extend, cut = ("fpext", "fptrunc") if real else ("zext", "trunc")

    @intrinsic
    def peek(typingctx: Any, address: Any) -> Any:
        def emit(builder: Any, given: Any) -> Any:
            value = builder.load(_at(builder, given[0], item), align=1)
            return value if bits == 64 else getattr(builder, extend)(value, wide)

        return value_type(types.int64), _value(emit)

    @intrinsic
    def poke(typingctx: Any, address: Any, value: Any) -> Any:
        def emit(builder: Any, given: Any) -> None:
            value = given[1] if bits == 64 else getattr(builder, cut)(given[1], item)
            builder.store(value, _at(builder, given[0], item), align=1)

        return types.void(types.int64, value_type), _nothing(emit)

    return peek, poke


peek64, poke64 = _access(64)
peek32, _ = _access(32)
peek8, poke8 = _access(8)
peek_float, poke_float = _access(64, real=True)
peek_float32, poke_float32 = _access(32, real=True)


def _mover(count: int) -> Any:
    """Make a copy of this many bytes between any addresses."""
    item = ir.VectorType(ir.IntType(8), count)

    @intrinsic
    def move(typingctx: Any, target: Any, source: Any) -> Any:
        def emit(builder: Any, given: Any) -> None:
            to, start = (_at(builder, address, item) for address in given)
            builder.store(builder.load(start, align=1), to, align=1)

        return types.void(types.int64, types.int64), _nothing(emit)

    return move


_move32, _move16, _move8, _move4 = (_mover(count) for count in (32, 16, 8, 4))
_CALL_FROM = 256


@kernel(inline=True)
def copy(target: int, source: int, count: int) -> None:
    """Copy bytes.

    Small sizes are inlined: a call of memcpy costs as much as all fields of a small row.
    """
    if count > _CALL_FROM:
        _memcpy(target, source, count)
    elif count >= 32:
        done = 0
        while done + 32 <= count:
            _move32(target + done, source + done)
            done += 32
        if done < count:
            _move32(target + count - 32, source + count - 32)
    elif count >= 16:
        _move16(target, source)
        _move16(target + count - 16, source + count - 16)
    elif count >= 8:
        _move8(target, source)
        _move8(target + count - 8, source + count - 8)
    elif count >= 4:
        _move4(target, source)
        _move4(target + count - 4, source + count - 4)
    else:
        for i in range(count):
            poke8(target + i, peek8(source + i))


def _runner(move: Any, size: int) -> Any:
    """Make `copy_run` of pieces of ``size`` to ``2 * size`` bytes."""

    @kernel(inline=True)
    def run(target: int, source: int, apart: int, pieces: int, count: int) -> None:
        for _ in range(pieces):
            move(target, source)
            move(target + count - size, source + count - size)
            target, source = target + count, source + apart

    return run


_run32, _run16, _run8, _run4 = (
    _runner(move, size) for move, size in ((_move32, 32), (_move16, 16), (_move8, 8), (_move4, 4))
)


@kernel(inline=True)
def copy_run(target: int, source: int, apart: int, pieces: int, count: int) -> None:
    """Copy ``pieces`` times ``count`` bytes, which lie ``apart`` bytes from each other, one behind
    the other.

    The size is looked at once, and not for each piece, which takes half of the time of small ones.
    """
    if count == apart:
        copy(target, source, pieces * count)
    elif 32 <= count <= 64:
        _run32(target, source, apart, pieces, count)
    elif 16 <= count < 32:
        _run16(target, source, apart, pieces, count)
    elif 8 <= count < 16:
        _run8(target, source, apart, pieces, count)
    elif 4 <= count < 8:
        _run4(target, source, apart, pieces, count)
    elif count == 1:
        for k in range(pieces):
            poke8(target + k, peek8(source + k * apart))
    else:
        for k in range(pieces):
            copy(target + k * count, source + k * apart, count)
