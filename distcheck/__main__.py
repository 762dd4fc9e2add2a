"""The program: ``distcheck`` and ``python -m distcheck``."""

import gc
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    # A start-up makes many objects and no garbage: the collector's default of one look per 700 objects costs a tenth.
    gc.set_threshold(100_000)
    from distcheck.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
