"""Connections to Postgres that end in the middle of a transaction."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tests.support.store_sites import PostgresSite


class CutOff:
    """Ends the connection of a store before a statement inside of a transaction."""

    def __init__(self, site: PostgresSite, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left = 0
        real = psycopg.AsyncConnection.execute

        async def execute(connection: Any, *args: Any, **options: Any) -> Any:
            is_inside = connection.info.transaction_status is TransactionStatus.INTRANS
            if is_inside and connection is not site.reader:
                if self._left == 0:
                    await connection.close()
                self._left -= 1
            return await real(connection, *args, **options)

        monkeypatch.setattr(psycopg.AsyncConnection, "execute", execute)

    def after(self, statements: int) -> None:
        """Cut the next transaction off after so many statements."""
        self._left = statements
