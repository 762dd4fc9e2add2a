"""``python -m distcheck`` is ``distcheck``."""

from distcheck.cli import main

if __name__ == "__main__":
    main()
