"""The value of a statement that has not run yet."""

from __future__ import annotations

from typing import Any, NoReturn

from millwheel.errors import UserCodeError


class NoRows:
    """In place of the rows of `Context.execute`: every use of it says that there are none."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> NoReturn:
        raise UserCodeError(
            "ctx.execute returns no rows: the statement runs later, in the record's own commit. "
            "To use what is in a table, keep it in ctx.state, or read the table as a stream"
        )

    __getitem__ = __iter__ = __aiter__ = __await__ = __len__ = __bool__ = __call__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python itself asks for it
            raise AttributeError(name)
        self._refuse()

    def __repr__(self) -> str:
        return "<no rows: the statement runs in the record's commit>"


NO_ROWS: Any = NoRows()
