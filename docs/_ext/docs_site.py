"""Adds to the pages the parts that Sphinx needs and a reader of the Markdown files does not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DECISIONS = """
```{toctree}
:hidden:
:glob:
[0-9]*
```
"""
STATES = re.compile(r"```mermaid\nstateDiagram-v2\n(.*?)```", re.DOTALL)
TRANSITION = re.compile(r" *(\S+) --> (\w+)(?:: (.+))?")
CODE = re.compile(r'(<span class="pre">)([^<]{13,})(?=</span>)')
BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[_./=(,\[])(?=\S)")
PAGE_OF_DOCS = re.compile(r"`{1,2}(docs/[\w/-]+)\.md`{1,2}")
FENCE = re.compile(r"( *)```(\w*)$")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _list_decisions)
    app.connect("source-read", _list_transitions)
    app.connect("autodoc-process-docstring", _translate, priority=0)
    app.connect("html-page-context", _let_names_break)
    return {"parallel_read_safe": True}


def _list_decisions(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the decisions into the site's tree; their list has links for readers."""
    if Path(page) == Path("decisions/README"):
        source[0] += DECISIONS


def _list_transitions(app: Sphinx, page: str, source: list[str]) -> None:
    """Show each diagram of states, which the site does not draw, as a table."""
    source[0] = STATES.sub(_transitions, source[0])


def _transitions(diagram: re.Match[str]) -> str:
    rows = ["| state | event | next state |", "|---|---|---|"]
    for state, following, event in TRANSITION.findall(diagram[1]):
        rows.append(f"| {state.replace('[*]', '(start)')} | {event} | {following} |")
    return "\n".join(rows)


def _let_names_break(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Let a long name in code break after its parts, so that tables of them fit a phone."""
    if "body" in context:
        context["body"] = CODE.sub(
            lambda code: code[1] + BREAK.sub("<wbr>", code[2]), context["body"]
        )


def _translate(
    app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]
) -> None:
    """Turn the Markdown of a docstring into the markup that autodoc reads."""
    if what == "data" and "\n".join(lines).strip() == inspect.getdoc(type(found)):
        lines.clear()  # a value without a text of its own: this is the text of its type
    lines[:] = _marked_up(lines)


def _marked_up(lines: list[str]) -> Iterator[str]:
    """Fenced code becomes a block, and code in backticks a reference where there is such a
    name."""
    fenced = False
    for line in lines:
        fence = FENCE.match(line)
        if fence is None:
            yield f"    {line}" if fenced else PAGE_OF_DOCS.sub(_linked, line)
            continue
        fenced = not fenced
        if fenced:
            yield ""
            yield f"{fence[1]}.. code-block:: {fence[2] or 'text'}"
        yield ""


def _linked(page: re.Match[str]) -> str:
    """A docstring names a page by its file; on the site this is a link with the page's title."""
    return f":doc:`/{page[1].removeprefix('docs/')}`"
