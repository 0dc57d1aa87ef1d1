"""The elements of a page, read as a browser reads them, for tests without one."""

from __future__ import annotations

from html.parser import HTMLParser

EMPTY = frozenset({"br", "hr", "img", "input", "link", "meta", "path", "circle", "rect", "line"})
"""Elements that have no end."""


class PageParts(HTMLParser):
    """Elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.unbalanced: list[str] = []
        """Ends without a beginning, and elements without an end."""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.unbalanced += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        elif tag not in EMPTY:
            self.unbalanced.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def foreign(self) -> list[str]:
        """Parts that no template of ours makes."""
        found = list(self.unbalanced)
        for tag, attributes in self.elements:
            if tag in ("iframe", "object", "embed", "style", "base"):
                found.append(tag)
            if tag == "script" and not attributes.get("src", "").endswith("/live.js"):
                found.append(f"script {attributes}")
            if attributes.get("class") == "foreign":
                found.append(f"{tag} {attributes}")
            for name, value in attributes.items():
                if name.startswith("on") or name in ("style", "srcdoc", "autofocus"):
                    found.append(f"{tag} {name}")
                if value.strip().lower().startswith(("javascript:", "data:", "//", "http:")) and (
                    name in ("href", "src", "action", "formaction")
                ):
                    found.append(f"{tag} {name}={value}")
        return found
