"""``millwheel worker``."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import structlog
import typer

from millwheel.cli.command import command
from millwheel.cli.display import log_boundedness, log_doubts, showing
from millwheel.cli.opened_store import opened_for
from millwheel.cli.options import (
    CodeOptions,
    CommonOptions,
    InputOptions,
    OptionGroup,
    ServingOptions,
)
from millwheel.errors import UsageError
from millwheel.services import loop
from millwheel.services.endpoint import Endpoint
from millwheel.services.hosting import Beside
from millwheel.services.ingesting import ingesting
from millwheel.services.interruption import Interruption, stop_at_end_of_input
from millwheel.services.tcp import ANYWHERE, Tls
from millwheel.services.worker import PeerSettings, PipelineWorker

VARIABLE = "MILLWHEEL_SECRET"

LINE_SECONDS = 10.0
"""Seconds between two progress lines of a worker without ``--until-done``."""

app = typer.Typer()


@dataclass(frozen=True)
class WorkerInputOptions(InputOptions):
    until_done: Annotated[
        bool, typer.Option("--until-done", help="Exit when all input has ended and is processed.")
    ] = False
    only_keys: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="Run only this part of the keys of each computation, 5% for example, while other "
            "workers, of the former code for example, run the rest.",
        ),
    ] = "100%"
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False


@dataclass(frozen=True)
class TlsOptions(OptionGroup):
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="PEM", help="This worker's certificate.")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Private key of the certificate.")
    ] = None
    tls_authority: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="CA certificate that signed the other workers' certificates. Default: the "
            "system's trusted CAs.",
        ),
    ] = None
    tls_one_way: Annotated[
        bool,
        typer.Option(
            "--tls-one-way",
            help="Accept workers without a client certificate; the secret authenticates them.",
        ),
    ] = False
    tls_any_host: Annotated[
        bool,
        typer.Option(
            "--tls-any-host", help="Do not check that a certificate names the host connected to."
        ),
    ] = False

    def settings(self) -> Tls | None:
        certificate, key, authority = self.tls_certificate, self.tls_key, self.tls_authority
        if certificate is None and key is None:
            given = {
                "--tls-authority": authority is not None,
                "--tls-one-way": self.tls_one_way,
                "--tls-any-host": self.tls_any_host,
            }
            for option, is_given in given.items():
                if is_given:
                    raise UsageError(f"{option} needs --tls-certificate and --tls-key")
            return None
        if certificate is None or key is None:
            raise UsageError("--tls-certificate and --tls-key need each other")
        return Tls(
            certificate,
            key,
            authority,
            mutual=not self.tls_one_way,
            check_host=not self.tls_any_host,
        )


@dataclass(frozen=True)
class PeerOptions(OptionGroup):
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to accept other workers on. Port 0: any free port. Beyond loopback, "
            "use TLS or a trusted network.",
        ),
    ] = "127.0.0.1:0"
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Address that other workers connect to, if it differs from --listen. Default "
            "when listening on all addresses: this machine's host name.",
        ),
    ] = None
    secret_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Secret shared by all workers of the pipeline, 16 bytes or more. Default: "
            "$MILLWHEEL_SECRET if set, otherwise the secret kept in the store.",
        ),
    ] = None

    def settings(self, tls: Tls | None) -> PeerSettings:
        """The network settings. The advertised name is by default this machine's."""
        endpoint, advertise = Endpoint.parse(self.listen), self.advertise
        if advertise is None and endpoint.host in ANYWHERE:
            advertise = socket.gethostname()
            structlog.get_logger().info("advertised_host", host=advertise)
        found = PeerSettings(endpoint, advertise, _secret(self.secret_file), tls)
        found.check()
        return found


@command(
    app,
    examples=[
        "millwheel worker zeitgeist:pipeline --store postgresql://db/shop",
        "millwheel worker zeitgeist:pipeline --http 127.0.0.1:8080  # with metrics",
        "millwheel worker zeitgeist:pipeline --only-keys 5%  # new code for some keys first",
    ],
)
def worker(
    code: CodeOptions,
    peers: PeerOptions,
    tls: TlsOptions,
    serving: ServingOptions,
    inputs: WorkerInputOptions,
    *,
    common: CommonOptions,
) -> None:
    """Run one of several workers that share a pipeline. It runs until SIGTERM or Ctrl-C."""
    pipeline = code.load()
    if inputs.until_done and inputs.keep_open:
        raise UsageError(
            "--until-done waits for the end of event time, which --keep-open prevents: give one of "
            "them"
        )
    only_keys = _part(inputs.only_keys)
    settings = peers.settings(tls.settings())
    http, ingestion = serving.endpoint(), serving.ingestion()
    with opened_for(pipeline.name, common) as presence:
        if not inputs.until_done:  # otherwise `millwheel run` has started this worker and logged it
            log_boundedness(pipeline, keep_open=inputs.keep_open)
            log_doubts(pipeline)

        async def work() -> Interruption:
            seconds = pipeline.settings.progress_seconds if inputs.until_done else LINE_SECONDS
            with (
                Interruption() as interruption,
                showing(pipeline.name, seconds) as (show, show_seconds),
            ):
                if inputs.stop_with_stdin:
                    stop_at_end_of_input(interruption.asked)
                worker = PipelineWorker(
                    pipeline,
                    presence.url,
                    settings,
                    http=http,
                    until_done=inputs.until_done,
                    keep_open=inputs.keep_open,
                    accept_late=inputs.accept_late,
                    only_keys=only_keys,
                    beside=Beside(show, show_seconds, presence.renew),
                )
                async with ingesting(pipeline, presence.url, ingestion):
                    await worker.run(interruption.asked)
                return interruption

        interruption = loop.run(work())
    if interruption.signal is not None:
        raise typer.Exit(interruption.exit_code)


def _part(text: str) -> float:
    """`UsageError` if it is no percentage above 0, up to 100."""
    try:
        part = float(text.removesuffix("%")) / 100 if text.endswith("%") else math.nan
    except ValueError:
        part = math.nan
    if not 0 < part <= 1:
        raise UsageError(f"--only-keys {text}: give a percentage above 0, up to 100%: 5%")
    return part


def _secret(file: Path | None) -> bytes | None:
    if file is None:
        return os.environb.get(VARIABLE.encode(), b"").strip() or None
    try:
        return file.read_bytes().strip()
    except OSError as error:
        raise UsageError(
            f"--secret-file {file} cannot be read: {error.strerror or error}"
        ) from error
