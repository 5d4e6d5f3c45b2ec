"""``python -m async_loader``: the command line, as `async-loader` has it."""

from async_loader.cli import main

if __name__ == "__main__":
    main()
