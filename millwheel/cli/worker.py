"""``millwheel worker``: run one of the workers that share a pipeline."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import structlog
import typer

from millwheel.cli.display import log_boundedness, showing
from millwheel.errors import UsageError
from millwheel.pipeline import Pipeline
from millwheel.services import loop
from millwheel.services.endpoint import Endpoint
from millwheel.services.hosting import Beside
from millwheel.services.ingesting import IngestOptions, ingesting
from millwheel.services.interruption import Interruption
from millwheel.services.tcp import ANYWHERE, Tls
from millwheel.services.worker import PeerSettings, PipelineWorker
from millwheel.store.address import StoreAddress
from millwheel.store.console.migrate import require_version
from millwheel.store.console.presence import present

VARIABLE = "MILLWHEEL_SECRET"

LINE_SECONDS = 10.0
"""Seconds between two progress lines of a worker without ``--until-done``."""


def work(
    pipeline: Pipeline,
    store: str | None,
    peers: PeerSettings,
    *,
    http: Endpoint | None,
    ingest: IngestOptions | None,
    until_done: bool,
    keep_open: bool,
    accept_late: bool,
    stop_with_stdin: bool,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C or, with `until_done`, until all input is processed."""
    address = StoreAddress.parse(store)
    with present(address, create=True) as presence:
        require_version(presence.url, pipeline.name, address=address, migrate_now=address.embedded)

        if not until_done:  # otherwise `millwheel run` has started this worker and logged it
            log_boundedness(pipeline, keep_open=keep_open)

        async def run() -> Interruption:
            seconds = pipeline.settings.progress_seconds if until_done else LINE_SECONDS
            with (
                Interruption() as interruption,
                showing(pipeline.name, seconds) as (show, show_seconds),
            ):
                if stop_with_stdin:
                    _stop_at_end_of_input(interruption.asked)
                worker = PipelineWorker(
                    pipeline,
                    presence.url,
                    peers,
                    http=http,
                    until_done=until_done,
                    keep_open=keep_open,
                    accept_late=accept_late,
                    beside=Beside(show, show_seconds, presence.renew),
                )
                async with ingesting(pipeline, presence.url, ingest):
                    await worker.run(interruption.asked)
                return interruption

        interruption = loop.run(run())
    if interruption.signal is not None:
        raise typer.Exit(interruption.exit_code)


def peer_settings(
    listen: str, advertise: str | None, secret_file: Path | None, tls: Tls | None
) -> PeerSettings:
    """Build the network settings from the options.

    A worker that listens on all addresses advertises this machine's host name by default.

    Raises:
        UsageError: the options contradict each other or are unsafe.
    """
    endpoint = Endpoint.parse(listen)
    if advertise is None and endpoint.host in ANYWHERE:
        advertise = socket.gethostname()
        structlog.get_logger().info("advertised_host", host=advertise)
    found = PeerSettings(endpoint, advertise, _secret(secret_file), tls)
    found.check()
    return found


def tls(
    certificate: Path | None,
    key: Path | None,
    authority: Path | None,
    *,
    mutual: bool,
    check_host: bool,
) -> Tls | None:
    """Build the TLS settings from the options; None without TLS options.

    Raises:
        UsageError: the certificate or its key is missing.
    """
    if certificate is None and key is None:
        given = {
            "--tls-authority": authority is not None,
            "--tls-one-way": not mutual,
            "--tls-any-host": not check_host,
        }
        for option, is_given in given.items():
            if is_given:
                raise UsageError(f"{option} needs --tls-certificate and --tls-key")
        return None
    if certificate is None or key is None:
        raise UsageError("--tls-certificate and --tls-key need each other")
    return Tls(certificate, key, authority, mutual=mutual, check_host=check_host)


def _secret(file: Path | None) -> bytes | None:
    if file is None:
        return os.environb.get(VARIABLE.encode(), b"").strip() or None
    try:
        return file.read_bytes().strip()
    except OSError as error:
        raise UsageError(
            f"--secret-file {file} cannot be read: {error.strerror or error}"
        ) from error


def _stop_at_end_of_input(asked: asyncio.Event) -> None:
    """Request a stop when standard input ends: the parent process closed the pipe or died."""
    running = asyncio.get_running_loop()
    pipe = sys.stdin.fileno()

    def read() -> None:
        if not os.read(pipe, 1024):
            running.remove_reader(pipe)
            asked.set()

    running.add_reader(pipe, read)
