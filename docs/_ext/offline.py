"""The site needs no network: a page that would load something from it fails the build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

REMOTE = re.compile(
    r"<(?:script|img|link|iframe|source|object)\b[^>]*\b(?:src|href|data)=[\"'](?:https?:)?//[^\"']*"
    r"|@import\s+(?:url\()?[\"']?(?:https?:)?//|url\([\"']?(?:https?:)?//[^)]*"
)


def remote_sources(folder: Path) -> list[str]:
    """What pages and styles of a folder load from elsewhere, with the file that does."""
    return [
        f"{page.relative_to(folder)}: {found[0]}"
        for page in sorted(folder.rglob("*"))
        if page.suffix in (".html", ".css")
        for found in REMOTE.finditer(page.read_text(encoding="utf-8"))
    ]


def check(app: Sphinx, error: Exception | None) -> None:
    remote = [] if error else remote_sources(Path(app.outdir))
    if remote:
        raise ExtensionError(
            "the site must not load anything from the network:\n" + "\n".join(remote)
        )


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
