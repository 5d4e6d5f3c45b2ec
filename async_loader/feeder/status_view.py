"""The status of a feeder on a terminal: tables, who waits, clients, weights. It fits 24 lines of 80
columns. Text of peers is cleaned before it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

Status = Mapping[str, Any]
_SILENT_S = 3.0
"""A client that is heard sends something each second or two."""
_WAITS = 3
"""Lines of those that wait for one table."""
_LEAST = 4
"""Rows of a table on a terminal that is too low."""
_ORDER = {"died": 0, "silent": 1, "left": 3}


class Screen:
    """Lines for a terminal, of which some may be left.

    Parameters
    ----------
    height : int, optional
        Of the terminal; ``None``: all is shown.
    """

    def __init__(self, height: int | None) -> None:
        self.lines: list[RenderableType] = []
        self._left = 1 << 20 if height is None else height

    def add(self, texts: Sequence[str], styles: Sequence[str] = (), keep: int = 0) -> None:
        """Add lines while there is room for them and ``keep`` others."""
        from rich.text import Text

        shown = max(0, min(len(texts), self._left - keep))
        for i, text in enumerate(texts[:shown]):
            style = styles[i] if styles else ""
            self.lines.append(Text(text, style, no_wrap=True, overflow="ellipsis"))
        self._left -= shown

    def table(
        self,
        names: Sequence[str],
        rows: Sequence[Sequence[str]],
        texts: int = 1,
        keep: int = 0,
        more: str = "",
        hidden: int = 0,
    ) -> None:
        """Add rows below ``names``; ``more`` counts those for which there is no room.

        All but the first ``texts`` columns are numbers. ``hidden``: rows that are not here.
        """
        if not rows:
            return
        room = self._left - keep - 1
        fits = len(rows) + bool(hidden) <= room
        shown = len(rows) if fits else max(1, min(max(_LEAST, room) - 1, len(rows)))
        self.lines.append(grid(names, rows[:shown], texts))
        self._left -= shown + 1
        if over := len(rows) - shown + hidden:
            self.add([f"and {over} {more}"])


def status_view(
    status: Status, before: Status | None = None, height: int | None = None
) -> list[RenderableType]:
    """Return a status as lines and tables.

    Parameters
    ----------
    before : Status, optional
        Rates are since then; else those of the feeder, over its last seconds.
    height : int, optional
        Lines of the terminal, of which one is the shell's. What does not fit is counted in a line;
        clients that are well are left out first.
    """
    screen = Screen(None if height is None else height - 1)
    screen.add([headline(status)])
    show_status(screen, status, before)
    return screen.lines


def headline(status: Status) -> str:
    """Return which feeder it is."""
    head = clean(str(status.get("address", "?")))
    if "shards" not in status:
        head += f", process {clean(str(status.get('pid', '?')))}"
    head += f", up {_duration(status.get('uptime_s', 0))}"
    return head + (", draining" if status.get("draining") else "")


def show_status(screen: Screen, status: Status, before: Status | None) -> None:
    """Show tables, those that wait, weights and clients."""
    sessions = sorted(status.get("sessions", ()), key=_trouble)
    names = ["table", "size", "in/s", "out/s", "out/in", "writers", "readers"]
    clients = min(len(sessions), _LEAST) + 3
    screen.table(names, _tables(status, before), keep=clients, more="tables more")
    screen.add([*_waits(status), *_stale(status)], keep=clients)
    screen.add(list(_weights(status)), keep=clients)
    screen.add([_summary(status, sessions)])
    seconds = seconds_between(before, status)
    old = {one["id"]: one for one in (before or {}).get("sessions", ())}
    rows = [_client(one, old.get(one["id"]), seconds) for one in sessions]
    hidden = max(0, status.get("sessions_open", 0) - len(rows))
    columns = ["client", "state", "rows/s", "batches/s", "age"]
    screen.table(columns, rows, 2, more="clients more: see --json", hidden=hidden)


# -- tables and weights ----------------------------------------------------------------------------


def _tables(status: Status, before: Status | None) -> list[list[str]]:
    rows, seconds = [], seconds_between(before, status)
    for name, one in status.get("tables", {}).items():
        old = table_of(before, name)
        if old is not None and seconds > 0:
            rates = [rate(one, old, what, seconds) for what in ("inserted", "sampled")]
        else:
            rates = [one["inserts_per_s"], one["samples_per_s"]]
        full = f" / {short_text(one['capacity'])}" if one["capacity"] else ""
        full += " full" if one.get("full") else ""
        ratio = f"{one['samples_per_insert']:.3g}"
        members = [str(one["writers"]), str(one["readers"])]
        rows.append(
            [name, f"{short_text(one['size'])}{full}", *map(short_text, rates), ratio, *members]
        )
    return rows


def _waits(status: Status) -> Iterator[str]:
    for name, one in status.get("tables", {}).items():
        waiting = [line for text in one["waiting"] for line in str(text).split("\n")]
        for text in waiting[:_WAITS]:
            yield f"{clean(name)} waits: {clean(text)}"
        if len(waiting) > _WAITS:
            yield f"{clean(name)}: {len(waiting) - _WAITS} more wait"


def _stale(status: Status) -> Iterator[str]:
    said = {"became_old": "became too old", "came_old": "came too old", "other_run": "other run"}
    for name, one in status.get("tables", {}).items():
        counts = [
            f"{count:,} {said.get(reason, clean(reason))}"
            for reason, count in one.get("stale", {}).items()
            if count
        ]
        if counts:
            yield f"{clean(name)}: max_lag left out {', '.join(counts)}"


def _weights(status: Status) -> Iterator[str]:
    ages, waiting = status.get("weights_age_s", {}), status.get("weights_waiting", {})
    for name, version in status.get("weights", {}).items():
        said = f"weights {clean(name)}: version {version}"
        if name in ages:
            said += f", published {_duration(ages[name])} ago"
        if waiting.get(name):
            said += f", {waiting[name]} wait for a newer one"
        yield said
        for table, one in status.get("tables", {}).items():
            lag = one.get("policies", {}).get(name)
            if lag is not None and "lag" in lag:
                behind = f"{lag['lag']} behind, {_duration(lag['lag_s'])}"
                yield f"  {clean(table)} gets steps of version {lag['oldest']}: {behind}"
            if lag is not None and "batch_lag" in lag:
                yield f"  {clean(table)} gives batches with steps {lag['batch_lag']} behind"
    for name in waiting.keys() - status.get("weights", {}).keys():
        yield f"weights {clean(name)}: {waiting[name]} wait for the first"


# -- clients ---------------------------------------------------------------------------------------


def _summary(status: Status, sessions: list[Status]) -> str:
    count = status.get("sessions_open", len(sessions))
    said = f"{count} client{'' if count == 1 else 's'}"
    ended = status.get("sessions_ended", {})
    gone = [f"{ended[how]} {how}" for how in ("died", "lost", "left") if ended.get(how)]
    return said + (f", and before: {', '.join(gone)}" if gone else "")


def _trouble(one: Status) -> tuple[float, ...]:
    """Return a key that sorts the worst first: dead, silent, held back, behind."""
    state = _ORDER.get(client_state(one)[0], 2)
    return state, -one.get("in_flight_bytes", 0), -(one.get("lag") or 0), one["id"]


def _client(one: Status, old: Status | None, seconds: float) -> list[str]:
    name = client_name(one)
    process = f"{one['host']}:{one['pid']}"
    user = f"{one['user']} at " if one.get("user") else ""
    rates = ["", ""]
    if old is not None and seconds > 0:
        places = ("rows_in", "writers"), ("batches_out", "readers")
        rates = [
            count_text(rate(one, old, what, seconds)) if one[members] else ""
            for what, members in places
        ]
    state, since = client_state(one)
    said = f"{state} {_duration(since)}"
    if state == "connected":
        said = "held back" if one.get("in_flight_bytes") else state
        said += f", {one['lag']} behind" if one.get("lag") else ""
    return [f"{name} {user}{process}".strip(), said, *rates, _duration(one["age_s"])]


def client_name(one: Status) -> str:
    """Return the name that a client gave `connect`; empty without one."""
    return str(one["user_agent"]).partition("async_loader/")[0].strip()


def client_state(one: Status) -> tuple[str, float]:
    """Return what a client does, and for how many seconds it was not heard."""
    silent_s = float(one["silent_s"])
    if one["connected"]:
        return ("silent" if silent_s >= _SILENT_S else "connected"), silent_s
    return ("died" if one["writers"] or one["readers"] else "left"), silent_s


# -- text ------------------------------------------------------------------------------------------


def rate(now: Status, before: Status, what: str, seconds: float) -> float:
    """Return how fast a count has grown a second; 0 for one that began anew.

    Of a count that a load sets, the total is taken, which it does not change.
    """
    total = f"{what}_total"
    what = total if total in now and total in before else what
    return max(0.0, float(now[what] - before[what])) / seconds


def seconds_between(before: Status | None, now: Status) -> float:
    """Return the seconds from one status to another, 0 without the first."""
    return 0.0 if before is None else float(now["uptime_s"] - before["uptime_s"])


def table_of(status: Status | None, name: str) -> Status | None:
    """Return a table's part of a status, if there is one."""
    found: Status | None = None if status is None else status["tables"].get(name)
    return found


def grid(names: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> RenderableType:
    """Return a table without lines; all but the first ``texts`` columns are numbers."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for i, name in enumerate(names):
        number = i >= texts
        grid.add_column(
            name,
            justify="right" if number else "left",
            no_wrap=i > 0,
            overflow="ellipsis",
            # only a long name gives way
            min_width=None if i == 0 else max(len(row[i]) for row in [names, *rows]),
        )
    for row in rows:
        grid.add_row(*(Text(clean(cell), no_wrap=True, overflow="ellipsis") for cell in row))
    return grid


def clean(text: str) -> str:
    """Return a peer's text without control characters."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in str(text))


def count_text(number: float) -> str:
    """Return a number with a decimal only where it matters."""
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def short_text(number: float) -> str:
    """Return a number as `count_text` does, from a million on in three digits: ``12.3 M``."""
    for unit, name in ((1e9, "G"), (1e6, "M")):
        if number >= unit:
            part = number / unit
            return f"{part:.{max(0, 2 - len(f'{part:.0f}') + 1)}f} {name}"
    return count_text(number)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{seconds:.1f} s"
    )
