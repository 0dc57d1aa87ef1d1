"""Adds to the pages what Sphinx needs and a reader of the Markdown files does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

DECISIONS = """
```{toctree}
:hidden:
:glob:
[0-9]*
```
"""


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", _list_decisions)
    return {"parallel_read_safe": True}


def _list_decisions(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the decisions into the site's tree; their list has links for readers."""
    if Path(page) == Path("decisions/README"):
        source[0] += DECISIONS
