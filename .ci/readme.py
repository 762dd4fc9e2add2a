"""The description on PyPI: README.md with links to this version on GitHub, because PyPI's page has no other files.

The workflow of a release names the repository (GITHUB_REPOSITORY). A package that is built elsewhere has README.md as
it is: its links lead nowhere outside of a clone, and no address is made up.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Sets the readme of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the readme to the package's metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("GITHUB_REPOSITORY")
        if repository:
            server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
            text = absolute(text, f"{server}/{repository}/blob/v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, base: str) -> str:
    """Return Markdown with its relative links below `base`."""
    return _RELATIVE.sub(rf"]({base}/\1)", text)
