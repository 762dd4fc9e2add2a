"""The entry point of ``distcheck`` and ``python -m distcheck``."""

import sys

try:
    from typing import NoReturn

    from distcheck.launch import signals
    from distcheck.run.garbage import hardly_searched
    from distcheck.run.streams import hold_standard_streams
except KeyboardInterrupt:
    sys.exit(130)


def main() -> NoReturn:
    """Run the command line."""
    try:
        hold_standard_streams()
        signals.reset()
        with hardly_searched():
            if sys.argv[1:2] in (["bandwidth"], ["gate"], ["isolate"]):
                from distcheck.launch.local import program

                program.start_early(sys.argv[2:])
            from distcheck.cli.main import main as command_line

            command_line()
    except KeyboardInterrupt:  # before there is anything to report
        sys.exit(130)


if __name__ == "__main__":
    main()
