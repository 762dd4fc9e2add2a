"""Silences warnings of torch's modules at import that are no concern of distcheck's."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore these warnings while the body imports torch."""
    with warnings.catch_warnings():
        # Every torch without NumPy warns at import; distcheck does not use NumPy.
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)
        # torch.cuda warns about the deprecated distribution of pynvml; which one is installed is the site's choice.
        warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
        yield
