"""The entry point of ``distcheck`` and ``python -m distcheck``."""

import gc
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line."""
    # Start-up creates many objects and no garbage; the default of one collection per 700 objects costs a tenth of it.
    # The facts of a large job are no garbage either: a collection of all objects would look through all of them.
    gc.set_threshold(100_000, 1_000, 1_000)
    try:
        if sys.argv[1:2] in (["bandwidth"], ["gate"], ["isolate"]):
            from distcheck.launch.local import program

            program.start_early(sys.argv[2:])
        from distcheck.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:  # before there is anything to report
        sys.exit(130)


if __name__ == "__main__":
    main()
