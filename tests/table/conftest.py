"""Fixtures of the tests that hold for every table, and for every writer. See table_rig.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest
from table_rig import TABLES, WRITERS, Making, Writers, each, making, open_here, relative, served

from tests.carried_state import compared


@pytest.fixture(**each(TABLES))
def make(request: pytest.FixtureRequest) -> Iterator[Making]:
    """Makes tables, and writers of their own."""
    with making(
        Writers(request.param, open_here, folder=relative if request.param is served else Path)
    ) as made:
        yield made


@pytest.fixture
def folder(make: Making, tmp_path: Path) -> PurePath:
    """Where tables may be saved to, as they are told it."""
    return make.kind.folder(tmp_path)


@pytest.fixture(**each(WRITERS))
def writing(request: pytest.FixtureRequest) -> Iterator[Making]:
    """Makes tables, and writers of one kind."""
    with making(request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def what_tables_carry_is_compared_with_their_rows() -> Iterator[None]:
    """After each call, in this process. See carried_state.py."""
    with compared():
        yield
