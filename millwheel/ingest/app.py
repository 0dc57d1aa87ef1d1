"""The ASGI app: answers ``POST /streams/NAME``.

======  ==========================================================================================
200     the records are committed; those with ids that were sent before have no second effect
400     a record is wrong (with `line`), an id is missing or too long, or the query is not known
401     the token or the signature is missing or wrong; 403: a web page without a token
404     no such stream takes records; 405: not POST; 415: another content type
408     the body did not come in time; 413: it is too large; 431: the headers are
422     the id was sent before, with another value
429     too many records wait to be processed: send again after `Retry-After` seconds
503     the store or the pipeline is away, or too much is being received: send again after
        `Retry-After` seconds
======  ==========================================================================================

A request without a status was perhaps taken: a repeat with the same ``Idempotency-Key`` is safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

import msgspec
import structlog

from millwheel.client import Client
from millwheel.errors import SendRefused, StoreError, UsageError
from millwheel.graph.node import Node
from millwheel.inbox import Inbox
from millwheel.ingest.commit_sharing import GroupSender
from millwheel.ingest.door import Door
from millwheel.ingest.request_reading import (
    ClientGone,
    Receive,
    RequestReader,
    RequestRefused,
    Scope,
)
from millwheel.pipeline import Pipeline

Answering = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MOST_WAITING = 100_000

STATUS = {"another_value": 422, "no_id": 400, "wrong": 400, "no_right": 500}
"""The status of each refusal of the store; of the others it is 503."""

RETRY = {"retry-after": "1"}
_TYPE = (b"content-type", b"application/json")

log = structlog.get_logger("millwheel.ingest")


class Ingest:
    """An ASGI app that sends request bodies into the streams of a pipeline that have an `Inbox`.

    ```python
    pipeline.add(AddUp(), ORDERS.by(customer))
    app = Ingest(pipeline, "postgresql://app@db/shop", tokens=["secret"])
    # uvicorn serves it, or an app of FastAPI or Starlette: fastapi.mount("/streams", app)
    ```

    It needs the store only, no worker: any number of processes may serve it.

    Args:
        pipeline: the pipeline, or a function that makes it.
        store: the address of its store, as for `Client`.
        tokens: bearer tokens, one of which a request must have. None: the server or the app around
            this one knows who may send. Streams with `Inbox(verify=...)` need none.
        most_waiting: records of a stream that may wait for the injector; with more, requests are
            refused with 429.
        from_pages: take requests of web pages (with a header ``Origin``) also without a token.
            Otherwise a page that is open on this machine cannot send to an address that only this
            machine reaches.

    Raises:
        UsageError: no stream of the pipeline has an Inbox, or a token is empty.
    """

    def __init__(
        self,
        pipeline: Pipeline | Callable[[], Pipeline],
        store: str | None = None,
        *,
        tokens: Collection[str] = (),
        most_waiting: int = MOST_WAITING,
        from_pages: bool = True,
    ) -> None:
        if isinstance(tokens, str) or not all(tokens):
            raise UsageError("Ingest: give tokens as a list of texts that are not empty")
        made = pipeline if isinstance(pipeline, Pipeline) else pipeline()
        injectors = [node for node in made.nodes.values() if _has_inbox(node)]
        self.doors = {node.writes[0].name: Door(made.graph(), node) for node in injectors}
        if not self.doors:
            raise UsageError(
                f"pipeline {made.name!r} takes no records over HTTP: inject an Inbox() into a "
                "stream"
            )
        self._reader = RequestReader(self.doors, tokens, from_pages=from_pages)
        self._sender = GroupSender(Client(made.name, store, connections=2), most_waiting)

    async def close(self) -> None:
        """Wait for requests that are being sent, and close the connections to the store."""
        await self._sender.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Answering) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                status, body, headers = await self._answer(scope, receive)
            except ClientGone:
                return
            text = msgspec.json.encode(body)
            more = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send(
                {
                    "type": "http.response.start",
                    "status": status,
                    "headers": [_TYPE, (b"content-length", b"%d" % len(text)), *more],
                }
            )
            await send({"type": "http.response.body", "body": text})

    async def _answer(
        self, scope: Scope, receive: Receive
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        try:
            with self._reader.request(scope, receive) as request:
                sending = await request.read()
                are_new = await self._sender.send(sending)
        except RequestRefused as refused:
            line = {} if refused.line is None else {"line": refused.line}
            return refused.status, {"error": str(refused), **line}, refused.headers
        except SendRefused as refused:
            status = STATUS.get(refused.why, 503)
            if status >= 500:
                log.warning("not_taken", reason=str(refused))
            return status, {"error": str(refused)}, RETRY if status == 503 else {}
        except StoreError as error:
            log.warning("not_taken", reason=str(error))
            return (
                503,
                {"error": "the store does not answer; the records may have been taken"},
                RETRY,
            )
        except ClientGone:
            raise
        except Exception as error:  # a verify= of the user's
            log.exception("request_failed", path=scope["path"])
            return 500, {"error": f"{type(error).__name__}; the server's log has the reason"}, {}
        new = sum(are_new)
        answer = {
            "accepted": new,
            "duplicates": len(are_new) - new,
            "idempotent": sending.is_idempotent,
        }
        return 200, answer, {}

    async def _live(self, receive: Receive, send: Answering) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _has_inbox(node: Node) -> bool:
    return node.injection is not None and isinstance(node.injection.source, Inbox)
