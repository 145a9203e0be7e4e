"""Give the README of the package whole addresses, when hatchling builds it.

The README has relative links, which work in a clone and on every branch. The page of a package
index shows the README without the repository, so there they would be broken.
"""

import re
from pathlib import Path
from typing import Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK: Final = re.compile(r"(!?)(\[[^\]]*\])\((?!https?://|#)([^)]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Provides `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, object]) -> None:
        """Add the README to the metadata of the package."""
        urls, version = metadata["urls"], metadata["version"]
        assert isinstance(urls, dict)
        repository = str(urls["Source"])
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": make_links_absolute(text, repository, f"v{version}"),
        }


def make_links_absolute(text: str, repository: str, tag: str) -> str:
    """Return `text` with its relative links as addresses in the repository at `tag`."""

    def replace(match: re.Match[str]) -> str:
        mark, label, path = match.groups()
        return f"{mark}{label}({repository}/{'raw' if mark else 'blob'}/{tag}/{path})"

    return RELATIVE_LINK.sub(replace, text)
