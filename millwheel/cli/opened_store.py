"""The store of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from millwheel.cli.options import CommonOptions
from millwheel.store.console.inspection import Inspection, inspect
from millwheel.store.console.presence import Presence, present


def opened(common: CommonOptions) -> AbstractContextManager[Presence]:
    """Open an existing store."""
    return present(common.address)


@contextmanager
def opened_for(pipeline: str, common: CommonOptions) -> Iterator[Presence]:
    """Open the store to run a pipeline; an embedded one is created and upgraded."""
    from millwheel.store.console.migrate import require_version  # with Alembic: slow to import

    address = common.address
    with present(address, create=True) as presence:
        require_version(presence.url, pipeline, address=address, migrate_now=address.embedded)
        yield presence


@contextmanager
def inspecting(common: CommonOptions) -> Iterator[Inspection]:
    """Read the store at one moment."""
    with opened(common) as presence, inspect(presence.url) as inspection:
        yield inspection
