"""docs/wire.md shows what this version sends. ``python tests/feeder/wire/test_wire_docs.py``
writes the dumps anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from wire_rig import examples, raw

from async_loader.feeder import wire
from async_loader.feeder.wire import codes

PAGE = Path(__file__).parents[3] / "docs" / "wire.md"
_PLACE = re.compile(r"<!-- hex (.*?) -->\n(?:\n```\n.*?```\n)?", re.DOTALL)


def dump(frames: list[bytes]) -> str:
    """Sixteen bytes a line, with offsets and what of it is text."""
    lines = []
    for number, frame in enumerate(frames):
        lines.append(
            f"{'header' if not number else f'body frame {number - 1}'}, {len(frame)} bytes"
        )
        for at in range(0, len(frame), 16):
            row = frame[at : at + 16]
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
            lines.append(f"  {at:04x}  {row.hex(' '):47}  {text}")
    return "\n".join(line.rstrip() for line in lines)


def written(page: str) -> str:
    """The page with the dumps as they ought to be."""
    return _PLACE.sub(
        lambda place: f"<!-- hex {place[1]} -->\n\n```\n{dump(raw(examples()[place[1]]))}\n```\n",
        page,
    )


def table(page: str, head: str) -> dict[int, str]:
    """The first two columns of the table that begins so."""
    rows = page[page.index(head) :].split("\n\n")[0].splitlines()[2:]
    return {int(row.split("|")[1]): row.split("|")[2].strip() for row in rows}


def test_the_dumps_are_what_is_sent():
    page = PAGE.read_text()
    assert len(_PLACE.findall(page)) >= 8
    assert page == written(page), f"run: python {Path(__file__).relative_to(PAGE.parents[1])}"


def test_the_page_names_every_type_and_every_error():
    page = PAGE.read_text()
    assert table(page, "| type | | body") == {int(kind): kind.name for kind in wire.Type}
    assert table(page, "| code | | worth") == {int(code): code.name for code in wire.ErrorCode}


def test_the_page_names_every_field_of_every_control_message():
    page = PAGE.read_text()
    rows = page[page.index("| message | fields |") :].split("\n\n")[0].splitlines()[2:]
    for row in rows:
        _, names, fields, _ = row.split("|")
        for name in names.split(","):
            body = next(m.body for m in examples().values() if m.type.name == name.strip())
            assert set(body.__struct_fields__) <= set(re.findall(r"`(\w+)`", fields)), name


def test_the_bounds_of_the_page_hold():
    page = PAGE.read_text()
    for number in (codes.CONTROL_BYTES, codes.FIELDS):
        assert str(number) in page
    assert [f"{dtype.itemsize}" for dtype in codes.DTYPES.values()] == re.findall(
        r"\d+", page[page.index("| bytes | 1") :].split("\n")[0]
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
