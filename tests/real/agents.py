"""How tests start torchrun's agent: some dozen times in a run, each a second of CPU for the import of torch alone."""

from __future__ import annotations

import sys
from pathlib import Path

TORCHRUN = [str(Path(sys.executable).parent / "torchrun")]
"""As users start it."""
QUICK_TORCHRUN = [sys.executable, str(Path(__file__).parents[1] / "programs" / "torchrun")]
"""The same agent, whose import of torch leaves out what it does not need; distcheck knows it by its name."""
