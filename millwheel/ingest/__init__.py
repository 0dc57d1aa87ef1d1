"""Records over HTTP: an ASGI app that sends request bodies into streams with an Inbox.

``millwheel worker MODULE:PIPELINE --ingest HOST:PORT`` serves it (`millwheel.services.ingesting`),
or your own ASGI server or app serves `Ingest`. See ``docs/howto/connect/http-requests.md``.
"""

from millwheel.ingest.app import Ingest
from millwheel.ingest.signatures import hmac_sha256

__all__ = ["Ingest", "hmac_sha256"]
