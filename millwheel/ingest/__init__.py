"""Records over HTTP: an ASGI app that sends request bodies into streams with an Inbox.

``millwheel worker MODULE:PIPELINE --ingest HOST:PORT`` serves it (`millwheel.services.ingesting`).
To serve it from a program of your own, give `Ingest` to an ASGI server, or mount it in an app of
FastAPI or Starlette::

    app.mount("/streams", Ingest(pipeline, "postgresql://app@db/shop"))

See ``docs/sources.md``.
"""

from millwheel.ingest.app import Ingest
from millwheel.ingest.signatures import hmac_sha256

__all__ = ["Ingest", "hmac_sha256"]
