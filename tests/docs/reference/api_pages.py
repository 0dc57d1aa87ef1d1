"""docs/reference/api: a page for each public module, whose text Sphinx takes from docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from textwrap import fill

import millwheel
from tests.docs.reference.markdown import WIDTH, page, prose

INDEX_HEAD = """
The public API: the names of each module's `__all__`. All other names are internal and may change.
`from millwheel import …` has the names that most programs need. The examples continue the program
in the docstring of `millwheel`.
"""


def modules() -> list[str]:
    return ["millwheel", *(f"millwheel.{name}" for name in millwheel.PUBLIC_MODULES)]


def api_pages() -> Iterator[tuple[str, str]]:
    """Name and text of each page."""
    listed = []
    for name in modules():
        module = import_module(name)
        first = (inspect.getdoc(module) or "").partition("\n\n")[0].removeprefix("millwheel: ")
        entry = f"* [{name}]({name}.md): {' '.join(first.split())}"
        listed.append(fill(entry, WIDTH, subsequent_indent="  ", break_on_hyphens=False))
        yield f"api/{name}.md", _module(name)
    tree = "\n".join(["```{toctree}", ":hidden:", *modules(), "```"])
    yield "api/index.md", page("API", prose(INDEX_HEAD), "\n".join(listed), tree)


def _module(name: str) -> str:
    """A page for one module; names that another page has are left to it."""
    parts = [f".. automodule:: {name}\n   :no-members:"]
    for public in sorted(import_module(name).__all__, key=str.lower):
        home = _home(public) if name == "millwheel" else None
        if home is None:
            parts.append(f".. auto{_kind(name, public)}:: {name}.{public}")
        else:
            parts.append(f"* :py:obj:`~{home}.{public}`")
    return page(name, "\n".join(["```{eval-rst}", "\n\n".join(parts), "```"]))


def _home(public: str) -> str | None:
    """The public module that has the name of the top level as well."""
    for name in millwheel.PUBLIC_MODULES:
        if public in import_module(f"millwheel.{name}").__all__:
            return f"millwheel.{name}"
    return None


def _kind(module: str, public: str) -> str:
    found = getattr(import_module(module), public)
    if inspect.isclass(found):
        return "exception" if issubclass(found, BaseException) else "class"
    if inspect.ismodule(found):
        return "module"
    return "function" if inspect.isroutine(found) else "data"
