"""Sends parcels from another program."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.client import Client
from millwheel.errors import SendRefused

from .model import PARCELS, Parcel


async def post(url: str, parcels: Sequence[Parcel]) -> int:
    """Send parcels, each once, and return the number of new ones."""
    async with Client("parcels", url) as client:
        try:
            sent = await client.send_all(PARCELS, parcels, ids=[each.number for each in parcels])
        except SendRefused as error:
            raise SystemExit(f"refused: {error}") from error
    return sum(sent)
