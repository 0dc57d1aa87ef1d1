"""The pages of a store beside a command that runs a pipeline: `millwheel ui` in a process of its
own, which a blocked event loop does not keep from answering."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from millwheel.errors import UsageError
from millwheel.services.endpoint import Endpoint
from millwheel.store.address import StoreAddress

USUAL = Endpoint(port=9460)

END_SECONDS = 10.0


def can_be_served() -> bool:
    """Whether the packages of the extra ``ui`` are installed."""
    return all(find_spec(name) is not None for name in ("starlette", "jinja2", "uvicorn"))


@contextmanager
def page_beside(address: StoreAddress, pipeline: str | None) -> Iterator[str]:
    """Serve the pages during the block; gives their URL. The process ends with this one, however
    that ends.

    Args:
        pipeline: the only one to show; None: all of the store.
    """
    endpoint = _free(USUAL)
    command = [
        sys.executable,
        "-m",
        "millwheel",
        "ui",
        "--http",
        str(endpoint),
        "--stop-with-stdin",
    ]
    if pipeline is not None:
        command.append(pipeline)
    environment = {**os.environ, "MILLWHEEL_STORE": address.url or str(address.directory)}
    with subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the command alone, which then ends this
    ) as process:
        try:
            yield f"http://{endpoint}/"
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _free(endpoint: Endpoint) -> Endpoint:
    """This address, or one with another port if that is in use."""
    try:
        listener = endpoint.listen("--ui", 1)
    except UsageError:
        listener = Endpoint(endpoint.host).listen("--ui", 1)
    with listener:
        return Endpoint(endpoint.host, listener.getsockname()[1])
