"""How commands show their flags, and report errors."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup


class Group(TyperGroup):
    """Commands that print errors as lines, and whose help shows flags without a type, which read
    as if they took a value.
    """

    def invoke(self, ctx: Any) -> Any:
        with errors_as_lines():
            return super().invoke(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_types(command.get_params(ctx))
        return command


def _without_types(params: list[Any]) -> list[Any]:
    for one in params:
        if one.metavar is None and getattr(one, "is_flag", False):
            one.metavar = ""
    return params


@contextlib.contextmanager
def errors_as_lines() -> Iterator[None]:
    """Print an error as one line and exit: code 2 for a bad request,
    1 for a failure at run time.
    """
    from async_loader.errors import (
        AsyncLoaderError,
        ConfigError,
        MissingExtra,
        missing_requirement,
    )
    from async_loader.os_errors import explain

    try:
        yield
    except AsyncLoaderError as error:
        typer.echo(str(error), err=True)
        code = 2 if isinstance(error, ConfigError | MissingExtra) else 1
        raise typer.Exit(code) from None
    except OSError as error:
        if error.errno == errno.EPIPE:  # the program that reads the output has ended
            raise
        typer.echo(explain(error), err=True)
        raise typer.Exit(1) from None
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith(__package__):
            raise
        typer.echo(str(missing_requirement(error.name)), err=True)
        raise typer.Exit(1) from None
