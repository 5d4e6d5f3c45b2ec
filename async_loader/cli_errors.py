"""How commands report errors."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import typer


@contextlib.contextmanager
def errors_as_lines() -> Iterator[None]:
    """Print an error as one line and exit: code 2 for a bad request,
    1 for a failure at run time.
    """
    from async_loader.errors import AsyncLoaderError, ConfigError, MissingExtra
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
        text = (
            f"this command needs {error.name}, which requirements-actor.txt leaves out: install "
            "async_loader with what it requires, as in pip install ."
        )
        typer.echo(text, err=True)
        raise typer.Exit(1) from None
