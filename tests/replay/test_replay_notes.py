"""Titled notes: each that a file of the room names is written in one place."""

from __future__ import annotations

import re
from pathlib import Path

import async_loader

ROOM = Path(async_loader.__file__).parent / "replay"


def test_each_note_that_is_named_is_there_once():
    texts = [path.read_text() for path in ROOM.rglob("*.py")]
    named = {title for text in texts for title in re.findall(r"NOTE\s+\[([\w -]+)\]", text)}
    written = [
        title
        for text in texts
        for title in re.findall(r"^ *# NOTE \[([\w -]+)\]$|^NOTE \[([\w -]+)\]\.", text, re.M)
    ]
    titles = sorted(first or second for first, second in written)
    assert titles == sorted(named)
