"""The leadership: the right to write wishes, held by an advisory lock (decision 22).

A session of its own holds the lock. The server ends a session that is idle for longer than a leader may be, so
a stopped process loses the lock; each call of `Leadership.try_lead` keeps the session alive. The lock saves
work and is not needed for safety: two workers that both believe to lead write wishes, each of which is a
compare-and-set.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from psycopg import AsyncConnection

from millwheel.store.session import OwnSession
from millwheel.store.statements import Statements


class Leadership:
    """One candidate. Not for concurrent use."""

    def __init__(self, url: str, statements: Statements) -> None:
        self._url = url
        self._statements = statements
        self._connection: AsyncConnection[Any] | None = None
        self._held = False

    async def try_lead(self, seconds: float) -> bool:
        """Whether this candidate leads. After a lost connection the next call connects again."""
        held, self._held = self._held, False
        try:
            async with asyncio.timeout(seconds):
                if self._connection is None:
                    self._connection = await OwnSession.connect(
                        self._url,
                        options="-c search_path= -c statement_timeout=10000",
                    )
                cursor = await self._connection.execute(
                    self._statements.get("lead"),
                    {
                        "timeout": f"{max(1, int(seconds * 1000))}ms",
                        "held": held,
                        "pipeline": self._statements.schema,
                    },
                    prepare=True,
                )
                row = await cursor.fetchone()
        except (psycopg.Error, TimeoutError):
            await self.close()
            return False
        self._held = row is not None and bool(row[1])
        return self._held

    async def close(self) -> None:
        """Release the lock by closing the session."""
        connection, self._connection = self._connection, None
        self._held = False
        if connection is not None:
            await connection.close()
