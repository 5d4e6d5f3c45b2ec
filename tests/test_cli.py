"""The commands, as a user types them."""

from __future__ import annotations

import subprocess
import sys

from typer.testing import CliRunner

from async_loader.cli import app
from async_loader.doctor import examine


def test_doctor_prints_every_finding():
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for finding in examine():
        assert finding.what in result.output


def test_doctor_names_the_folder_of_compiled_kernels_or_the_remedy(monkeypatch):
    from async_loader.replay.base import compiled

    def kernels():
        return next(finding for finding in examine() if finding.what == "compiled kernels")

    assert kernels().fact == compiled.kernel_folder()
    monkeypatch.setattr(compiled, "kernel_folder", lambda: None)
    assert "NUMBA_CACHE_DIR" in kernels().remedy


def test_a_wrong_option_is_refused_by_name():
    result = CliRunner().invoke(app, ["demo", "--num-env", "3"])
    assert result.exit_code == 2
    assert "--num-env" in result.output


def test_an_impossible_value_is_refused_before_anything_runs():
    result = CliRunner().invoke(app, ["demo", "--target", "501"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "501" in result.output


def test_the_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "async_loader.cli", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "doctor" in done.stdout
