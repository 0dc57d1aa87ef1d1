"""An embedded Postgres: one durable server per store directory, which runs as a daemon.

``lifecycle``      the functions below
``server_files``   the files of a store directory, and the locks on them
``binaries``       where the Postgres programs come from
``account``        the operating-system account that the server runs under
"""

from millwheel.store.embedded.lifecycle import (
    EmbeddedServer,
    ServerStatus,
    programs,
    remove,
    start,
    status,
    stop,
    stop_if_unused,
)

__all__ = [
    "EmbeddedServer",
    "ServerStatus",
    "programs",
    "remove",
    "start",
    "status",
    "stop",
    "stop_if_unused",
]
