"""The command line: names, arguments and options of all commands.

The modules that implement a command are imported when it runs, so that `millwheel --help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from millwheel.cli import operating
from millwheel.cli.options import (
    Debug,
    Json,
    LogFormat,
    LogLevel,
    OnePipeline,
    Reason,
    Store,
    Target,
    Yes,
)
from millwheel.cli.reporting import command

app = typer.Typer(
    name="millwheel",
    help="Per-record stream processing with exactly-once state, on Postgres.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
intervals = typer.Typer(no_args_is_help=True)
app.add_typer(
    intervals,
    name="intervals",
    help="Show which worker owns which key intervals; move, split or merge them.",
)
app.add_typer(
    operating.state, name="state", help="Look at one key, or change its state: its owner does it."
)
app.add_typer(operating.timers, name="timers", help="Cancel a timer of a key, or let it fire now.")
app.add_typer(
    operating.dead_letters,
    name="dead-letters",
    help="List, show, retry, export or discard dead letters: records that failed for good.",
)

KeepOpen = Annotated[
    bool,
    typer.Option(
        "--keep-open",
        help=(
            "Keep windows open after a bounded input has been read, so that rows appended later "
            "are accepted. Without it event time ends there."
        ),
    ),
]
AcceptLate = Annotated[
    bool,
    typer.Option(
        "--accept-late",
        help="Treat rows that arrive after the end of event time as late instead of failing.",
    ),
]
HttpAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Serve /healthz, /readyz, /metrics and /status on this address.",
        show_default=False,
    ),
]
IngestAddress = Annotated[
    str | None,
    typer.Option(
        "--ingest",
        metavar="HOST:PORT",
        help=(
            "Take records over HTTP on this address (POST /streams/NAME), for streams with an "
            "Inbox."
        ),
        show_default=False,
    ),
]
IngestTokens = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=(
            "Bearer tokens, one of which each request must have. Default: "
            "$MILLWHEEL_INGEST_TOKENS. Needed beyond loopback."
        ),
        show_default=False,
    ),
]
DriverMemory = Annotated[str, typer.Option(metavar="SIZE", help="Memory of Spark's driver.")]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; repeatable."),
]
PyFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--py-files",
        metavar="FILE",
        help="A .py or .zip file for executors, besides the package of MODULE; repeatable.",
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from millwheel import __version__

        typer.echo(f"millwheel {__version__}")
        raise typer.Exit


@app.callback()
def _all(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@app.command()
@command
def run(
    target: Target,
    store: Store = None,
    keep_open: KeepOpen = False,
    accept_late: AcceptLate = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Run in N processes. Default: in this process.",
            show_default=False,
        ),
    ] = None,
    http: HttpAddress = None,
    ingest: IngestAddress = None,
    ingest_tokens: IngestTokens = None,
    engine: Annotated[
        Literal["millwheel", "spark"],
        typer.Option(help="What runs the pipeline: this engine, or a streaming query of Spark."),
    ] = "millwheel",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="With --engine spark: where Spark keeps the state, a directory or a URL.",
            show_default=False,
        ),
    ] = None,
    until_caught_up: Annotated[
        bool,
        typer.Option(
            help="With --engine spark: end as soon as the input that is there is processed."
        ),
    ] = False,
    max_rows: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --engine spark: most rows of a batch.")
    ] = 20_000,
    master: Annotated[
        str, typer.Option(metavar="URL", help="With --engine spark: where Spark runs.")
    ] = "local[2]",
    driver_memory: DriverMemory = "1g",
    conf: SparkSettings = None,
    py_files: PyFiles = None,
    as_json: Json = False,
    inject_twice: Annotated[bool, typer.Option("--inject-twice", hidden=True)] = False,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    debug: Debug = False,
) -> None:
    """Run a pipeline until its input is processed. Run again, it resumes where it stopped."""
    from millwheel.cli.target import load_pipeline

    pipeline = load_pipeline(target)
    if engine == "spark":
        from millwheel.cli.spark import run_engine, settings_of
        from millwheel.spark.launch import Cluster

        run_engine(
            pipeline,
            target,
            store,
            checkpoint=checkpoint,
            until_caught_up=until_caught_up,
            keep_open=keep_open,
            max_rows=max_rows,
            cluster=Cluster(master, None, driver_memory, settings_of(conf or []), py_files or ()),
            others={
                "--workers": workers is not None,
                "--http": http is not None,
                "--ingest": ingest is not None,
                "--accept-late": accept_late,
                "--json": as_json,
            },
        )
        return
    if checkpoint is not None or until_caught_up:
        from millwheel.errors import UsageError

        raise UsageError("--checkpoint and --until-caught-up are for --engine spark")
    from millwheel.cli.run import run, run_crew

    if workers is not None:
        from millwheel.errors import UsageError

        if ingest is not None or http is not None:
            raise UsageError(
                "--workers serves neither --http nor --ingest: start processes of `millwheel "
                "worker` instead"
            )
        if keep_open or inject_twice:
            raise UsageError(
                "--workers runs to the end of the input and closes all windows there, so it cannot "
                "be combined with --keep-open"
            )
        run_crew(pipeline, target, store, workers, accept_late=accept_late, as_json=as_json)
        return
    from millwheel.services.endpoint import Endpoint
    from millwheel.services.ingesting import IngestOptions

    run(
        pipeline,
        store,
        keep_open=keep_open,
        accept_late=accept_late,
        as_json=as_json,
        inject_copies=2 if inject_twice else 1,
        http=None if http is None else Endpoint.parse(http),
        ingest=IngestOptions.parse(ingest, ingest_tokens),
    )


@app.command()
@command
def worker(
    target: Target,
    store: Store = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to accept other workers on. Port 0: any free port. Beyond loopback, "
            "use TLS or a trusted network.",
        ),
    ] = "127.0.0.1:0",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help=(
                "Address that other workers connect to, if it differs from --listen. Default when "
                "listening on all addresses: this machine's host name."
            ),
            show_default=False,
        ),
    ] = None,
    http: HttpAddress = None,
    ingest: IngestAddress = None,
    ingest_tokens: IngestTokens = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Secret shared by all workers of the pipeline, 16 bytes or more. Default: "
            "$MILLWHEEL_SECRET if set, otherwise the secret kept in the store.",
            show_default=False,
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="This worker's certificate.", show_default=False),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Private key of the certificate.", show_default=False),
    ] = None,
    tls_authority: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="CA certificate that signed the other workers' certificates. Default: the "
            "system's trusted CAs.",
            show_default=False,
        ),
    ] = None,
    tls_one_way: Annotated[
        bool,
        typer.Option(
            "--tls-one-way",
            help="Accept workers without a client certificate; the secret authenticates them.",
        ),
    ] = False,
    tls_any_host: Annotated[
        bool,
        typer.Option(
            "--tls-any-host", help="Do not check that a certificate names the host connected to."
        ),
    ] = False,
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done",
            help="Exit when all input has ended and is processed.",
        ),
    ] = False,
    keep_open: KeepOpen = False,
    accept_late: AcceptLate = False,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    debug: Debug = False,
) -> None:
    """Run one of several workers that share a pipeline, until SIGTERM or Ctrl-C."""
    from millwheel.cli.target import load_pipeline

    pipeline = load_pipeline(target)
    if until_done and keep_open:
        from millwheel.errors import UsageError

        raise UsageError(
            "--until-done waits for the end of event time, which --keep-open prevents: give one of "
            "them"
        )
    from millwheel.cli.worker import peer_settings, tls, work
    from millwheel.services.endpoint import Endpoint
    from millwheel.services.ingesting import IngestOptions

    encryption = tls(
        tls_certificate,
        tls_key,
        tls_authority,
        mutual=not tls_one_way,
        check_host=not tls_any_host,
    )
    work(
        pipeline,
        store,
        peer_settings(listen, advertise, secret_file, encryption),
        http=None if http is None else Endpoint.parse(http),
        ingest=IngestOptions.parse(ingest, ingest_tokens),
        until_done=until_done,
        keep_open=keep_open,
        accept_late=accept_late,
        stop_with_stdin=stop_with_stdin,
    )


@app.command()
@command
def graph(
    target: Target,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a pipeline's graph and print it, without starting anything."""
    from millwheel.cli.target import load_pipeline
    from millwheel.errors import UsageError
    from millwheel.graph import drawing

    if mermaid and as_json:
        raise UsageError("choose one of --mermaid and --json")
    found = load_pipeline(target).graph()
    if as_json:
        from millwheel.cli.output import print_json

        print_json({"pipeline": found.name, **found.describe()})
    else:
        typer.echo(drawing.mermaid(found) if mermaid else drawing.text(found))


@app.command()
@command
def migrate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:PIPELINE|NAME",
            help="The pipeline, or its name.",
            show_default=False,
        ),
    ],
    store: Store = None,
    roles: Annotated[
        bool,
        typer.Option(
            "--roles",
            help=(
                "Make the roles DATABASE_NAME_owner, _worker, _operator and _reader, or renew "
                "their rights."
            ),
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Create or upgrade a pipeline's schema. `run` and `worker` do so for embedded stores.

    With MODULE:PIPELINE, the streams of a new pipeline that have an Inbox take records from then
    on.
    """
    from millwheel.cli.store import migrate

    migrate(target, store, roles=roles)


@app.command()
@command
def status(
    pipeline: Annotated[
        str | None,
        typer.Argument(help="Name of a pipeline. Default: all pipelines.", show_default=False),
    ] = None,
    store: Store = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C, with rates.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=3600,
            metavar="SECONDS",
            help="Refresh interval of --watch. Default: 1.",
            show_default=False,
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=(
                "Serve /healthz, /metrics and /status on this address until Ctrl-C or SIGTERM: "
                "what the store "
                "knows, also when no worker lives."
            ),
            show_default=False,
        ),
    ] = None,
    disk: Annotated[
        bool, typer.Option("--disk", help="Show what is on disk instead, and what keeps it.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show workers, watermarks and their holders, backlog and counters."""
    if disk:
        from millwheel.cli.store import disk as show_disk

        show_disk(pipeline, store, as_json=as_json)
        return
    if http is not None:
        from millwheel.cli.store import serve_status

        serve_status(pipeline, store, http)
        return
    if watch:
        from millwheel.cli.watch import watch as watch_status

        watch_status(pipeline, store, seconds=interval or 1.0, as_json=as_json)
        return
    if interval is not None:
        from millwheel.errors import UsageError

        raise UsageError("--interval needs --watch")
    from millwheel.cli.store import status

    status(pipeline, store, as_json=as_json)


PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", show_default=False)]
Injectors = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INJECTOR", help="Names of injectors. Default: all.", show_default=False
    ),
]


@app.command()
@command
def pause(
    pipeline: PipelineName,
    injectors: Injectors = None,
    store: Store = None,
    reason: Reason = "",
    debug: Debug = False,
) -> None:
    """Stop injectors from reading. Rows already read are processed; watermarks stop advancing."""
    from millwheel.cli.store import pause

    pause(pipeline, injectors or [], store, paused=True, reason=reason)


@app.command()
@command
def resume(
    pipeline: PipelineName,
    injectors: Injectors = None,
    store: Store = None,
    reason: Reason = "",
    debug: Debug = False,
) -> None:
    """Let paused injectors continue reading where they stopped."""
    from millwheel.cli.store import pause

    pause(pipeline, injectors or [], store, paused=False, reason=reason)


@app.command("set-aside")
@command
def set_aside(
    name: Annotated[str, typer.Argument(metavar="COMPUTATION|INJECTOR", show_default=False)],
    item: Annotated[
        str,
        typer.Argument(metavar="RECORD|ROW", help="As the error names it.", show_default=False),
    ],
    store: Store = None,
    pipeline: OnePipeline = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Of a record: its key as JSON.", show_default=False),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of a row: its partition. Default: the only one.",
            show_default=False,
        ),
    ] = None,
    reason: Reason = "",
    debug: Debug = False,
) -> None:
    """Make a dead letter of a record, or of a source's row, that stops the pipeline. The error of
    the worker names this command."""
    from millwheel.cli.asking import set_aside

    set_aside(name, item, store, pipeline, key=key, partition=partition, reason=reason)


@app.command()
@command
def sql(
    statements: Annotated[
        list[str],
        typer.Argument(
            metavar="STATEMENT...",
            help="A read-only statement, such as a SELECT. Several statements read one snapshot.",
            show_default=False,
        ),
    ],
    store: Store = None,
    pipeline: OnePipeline = None,
    form: Annotated[
        Literal["table", "csv", "json"], typer.Option("--format", "-f", help="Output format.")
    ] = "table",
    timeout: Annotated[
        float, typer.Option(min=0.001, max=86400, help="Timeout of each statement, in seconds.")
    ] = 60.0,
    debug: Debug = False,
) -> None:
    """Run a read-only SQL statement on the store's tables and views (states, watermarks, …)."""
    from millwheel.cli.store import sql

    sql(statements, store, pipeline, form, timeout)


@app.command()
@command
def move(
    target: Target,
    to: Annotated[Literal["spark", "engine"], typer.Option(help="Where to.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="With --to spark: where Spark will keep the state, a directory or a URL.",
            show_default=False,
        ),
    ] = None,
    store: Store = None,
    master: Annotated[
        str, typer.Option(metavar="URL", help="With --to engine: where Spark reads its state.")
    ] = "local[2]",
    driver_memory: DriverMemory = "1g",
    conf: SparkSettings = None,
    reason: Reason = "",
    debug: Debug = False,
) -> None:
    """Move a pipeline with its state to Spark, or back; between two records, with nothing lost or
    doubled."""
    from millwheel.cli.spark import move, settings_of
    from millwheel.spark.launch import Cluster

    cluster = Cluster(master, None, driver_memory, settings_of(conf or []))
    move(target, store, to=to, checkpoint=checkpoint, cluster=cluster, reason=reason)


IntervalId = Annotated[int, typer.Argument(metavar="ID", show_default=False)]
Timeout = Annotated[
    float, typer.Option(min=0.0, metavar="SECONDS", help="How long to wait for completion.")
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Only record the request; workers carry it out later.")
]


@intervals.command("list")
@command
def list_intervals(
    store: Store = None,
    pipeline: OnePipeline = None,
    events: Annotated[
        int, typer.Option(min=0, metavar="N", help="Also list the newest N placement events.")
    ] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List intervals with their owners and their load."""
    from millwheel.cli.intervals import list_intervals

    list_intervals(store, pipeline, events, as_json=as_json)


@intervals.command("move")
@command
def move_interval(
    interval: IntervalId,
    worker: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKER", help="Id of the worker, or a unique prefix.", show_default=False
        ),
    ] = None,
    anywhere: Annotated[
        bool,
        typer.Option("--anywhere", "--unpin", help="Unpin it: let the balancer place it again."),
    ] = False,
    store: Store = None,
    pipeline: OnePipeline = None,
    reason: Reason = "",
    timeout: Timeout = 30.0,
    no_wait: NoWait = False,
    debug: Debug = False,
) -> None:
    """Move an interval to a worker and pin it there for as long as the worker lives."""
    from millwheel.cli.intervals import move
    from millwheel.errors import UsageError

    if anywhere == (worker is not None):
        raise UsageError("name the worker to move it to, or give --anywhere")
    move(interval, worker, store, pipeline, None if no_wait else timeout, reason)


@intervals.command("split")
@command
def split_interval(
    interval: IntervalId,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="SLOT",
            help="First slot of the upper part. Default: the median of its load if known, "
            "otherwise the middle of its slots.",
            show_default=False,
        ),
    ] = None,
    store: Store = None,
    pipeline: OnePipeline = None,
    reason: Reason = "",
    timeout: Timeout = 30.0,
    no_wait: NoWait = False,
    debug: Debug = False,
) -> None:
    """Split an interval in two."""
    from millwheel.cli.intervals import split

    split(interval, at, store, pipeline, None if no_wait else timeout, reason)


@intervals.command("merge")
@command
def merge_intervals(
    lower: Annotated[int, typer.Argument(metavar="LOWER", show_default=False)],
    upper: Annotated[int, typer.Argument(metavar="UPPER", show_default=False)],
    store: Store = None,
    pipeline: OnePipeline = None,
    reason: Reason = "",
    timeout: Timeout = 30.0,
    no_wait: NoWait = False,
    debug: Debug = False,
) -> None:
    """Merge two adjacent intervals, on the worker that owns the lower one."""
    from millwheel.cli.intervals import merge

    merge(lower, upper, store, pipeline, None if no_wait else timeout, reason)


@app.command()
@command
def drop(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline.", show_default=False)],
    store: Store = None,
    yes: Yes = False,
    debug: Debug = False,
) -> None:
    """Drop a pipeline's schema with everything in it: state, timers, results."""
    from millwheel.cli.store import drop

    drop(pipeline, store, sure=yes)


@app.command()
@command
def remove(
    pipeline: Annotated[str, typer.Argument(help="Name of the pipeline.", show_default=False)],
    computations: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="Computations or injectors to remove.", show_default=False
        ),
    ],
    store: Store = None,
    yes: Yes = False,
    reason: Reason = "",
    debug: Debug = False,
) -> None:
    """Delete computations and their state from a pipeline, which may keep running."""
    from millwheel.cli.store import remove

    remove(pipeline, computations, store, sure=yes, reason=reason)


StoreDirectory = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR", help="Directory of the store, as --store DIR.", show_default=False
    ),
]


@app.command()
@command
def stop(
    directory: StoreDirectory = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Stop the embedded Postgres of a directory, even while other processes use it."""
    from millwheel.cli.store import stop

    stop(directory, store)


@app.command()
@command
def url(
    directory: StoreDirectory = None,
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Print the URL of a directory's embedded Postgres, for psql and other programs, while it
    runs."""
    from millwheel.cli.store import url

    url(directory, store)


@app.command()
@command
def spark(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help=(
                "A pipeline whose aggregates to keep up to date, or a function that takes a "
                "millwheel.spark.Job."
            ),
            show_default=False,
        ),
    ],
    store: Store = None,
    pipeline: OnePipeline = None,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for a function's output files.")
    ] = Path(".millwheel") / "output",
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Aggregates: end when nothing is new.")
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Aggregates: make them from all rows first.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only this aggregate; repeatable."),
    ] = None,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Aggregates: most new rows in one batch.")
    ] = 100_000,
    snapshot_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="A function: longest time for which its snapshot is held; 0: no limit.",
        ),
    ] = 3600.0,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Spark master: local[N] or spark://HOST:7077.")
    ] = "local[2]",
    remote: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Spark Connect server, sc://HOST:15002, in place of a master."
        ),
    ] = None,
    driver_memory: DriverMemory = "1g",
    conf: SparkSettings = None,
    py_files: PyFiles = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    debug: Debug = False,
) -> None:
    """Keep a pipeline's aggregates up to date with PySpark, or run a function on a snapshot of its
    tables."""
    from millwheel.cli.spark import run, settings_of
    from millwheel.spark.launch import Cluster

    cluster = Cluster(master, remote, driver_memory, settings_of(conf or []), py_files or ())
    run(
        target,
        store,
        pipeline,
        output=output,
        until_caught_up=until_caught_up,
        from_scratch=from_scratch,
        only=only or [],
        max_rows=max_rows,
        snapshot_seconds=snapshot_seconds,
        cluster=cluster,
    )


app.command("log")(operating.log)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
