"""The commands, as a user types them."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from async_loader.cli import app


def test_doctor_ends_with_a_verdict():
    from async_loader import doctor

    found = [doctor.Finding("a", "b"), doctor.Finding("c", "d", "mend it")]
    assert doctor.verdict(found[:1]) == "All is well."
    assert doctor.verdict(found) == "1 thing to look at: c."
    lines = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"}).output.splitlines()
    assert lines[-1].startswith(("All is well", "1 thing", "2 things"))


def commands(group, path=()):
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "async_loader", "doctor", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.startswith("No space left on device: free some of the disk")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x/a"),
         "/x/a: No space left on device: free some of the disk, or name a place on another one"),
        (PermissionError(errno.EACCES, "Permission denied", b"/x"),
         "/x: Permission denied: give this user the right to it, or name another place"),
        (OSError(errno.EXDEV, "Invalid cross-device link", "/x", None, "/y"),
         "/x -> /y: Invalid cross-device link"),
        (OSError("two\nlines"), "two lines"),
    ],
)  # fmt: skip
def test_an_error_of_the_system_is_one_line_with_its_remedy(monkeypatch, error, line):
    def fail():
        raise error

    monkeypatch.setattr("async_loader.doctor.examine", fail)
    result = CliRunner().invoke(app, ["doctor"])
    assert (result.exit_code, result.stderr) == (1, line + "\n")
