"""The entry point of ``distcheck`` and ``python -m distcheck``."""

import gc
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    # Start-up creates many objects and no garbage; the default of one collection per 700 objects costs a tenth of it.
    gc.set_threshold(100_000)
    from distcheck.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
