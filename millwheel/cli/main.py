"""The command line: what the commands are called and take. What they do stands elsewhere,
and is imported when it is needed, so that `millwheel --help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from millwheel.cli.reporting import command

app = typer.Typer(
    name="millwheel",
    help="Per-record stream processing with exactly-once state, on Postgres.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
dead_letters = typer.Typer(no_args_is_help=True)
app.add_typer(
    dead_letters, name="dead-letters", help="Records that were given up on: look, or let go."
)
intervals = typer.Typer(no_args_is_help=True)
app.add_typer(
    intervals, name="intervals", help="Which worker has which keys: look, or say how it should be."
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:PIPELINE",
        help="As in examples.flights:pipeline; the current directory is looked in first.",
        show_default=False,
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL|DIR",
        help="A postgresql:// URL, or the directory of an embedded Postgres. Else "
        "$MILLWHEEL_STORE, else .millwheel.",
        show_default=False,
    ),
]
OnePipeline = Annotated[
    str | None,
    typer.Option(
        "--pipeline", "-p", metavar="NAME", help="Which one, if there are several.",
        show_default=False,
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
KeepOpen = Annotated[
    bool,
    typer.Option(
        "--keep-open",
        help="Leave windows open when an input with an end has been read, for rows that are "
        "appended later. Without it event time is over then.",
    ),
]
AcceptLate = Annotated[
    bool,
    typer.Option(
        "--accept-late",
        help="Process rows that come after event time is over as late ones, not as an error.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


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
            help="In so many processes. Else in this one.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    inject_twice: Annotated[bool, typer.Option("--inject-twice", hidden=True)] = False,
    debug: Debug = False,
) -> None:
    """Run a pipeline until its input is processed. Started again, it goes on where it was."""
    from millwheel.cli.target import load_pipeline

    pipeline = load_pipeline(target)
    from millwheel.cli.run import run, run_crew

    if workers is not None:
        if keep_open or inject_twice:
            from millwheel.errors import UsageError

            raise UsageError(
                "--workers runs to the end of the input and closes all windows there: it does not "
                "go with --keep-open"
            )
        run_crew(pipeline, target, store, workers, accept_late=accept_late, as_json=as_json)
        return
    run(
        pipeline,
        store,
        keep_open=keep_open,
        accept_late=accept_late,
        as_json=as_json,
        inject_copies=2 if inject_twice else 1,
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
            help="Where other workers reach this one. Port 0: any that is free. On other "
            "hosts than loopback use TLS, or a network that you trust.",
        ),
    ] = "127.0.0.1:0",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="At which address they do, if it is another. Else the name of this machine, if "
            "it listens on all addresses.",
            show_default=False,
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Answer /healthz, /readyz, /metrics and /status there.",
            show_default=False,
        ),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The shared secret of all workers of the pipeline, 16 bytes or more. Else "
            "$MILLWHEEL_SECRET; else the one that is kept in the store.",
            show_default=False,
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="This worker's certificate.", show_default=False),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Its key.", show_default=False)
    ] = None,
    tls_authority: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Who signed the others' certificates. Else those the machine trusts.",
            show_default=False,
        ),
    ] = None,
    tls_one_way: Annotated[
        bool,
        typer.Option(
            "--tls-one-way", help="Callers need no certificate; the secret says who they are."
        ),
    ] = False,
    tls_any_host: Annotated[
        bool,
        typer.Option(
            "--tls-any-host", help="A certificate need not name the host that was called."
        ),
    ] = False,
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done",
            help="End when all input has ended and is processed, instead of waiting.",
        ),
    ] = False,
    keep_open: KeepOpen = False,
    accept_late: AcceptLate = False,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
    debug: Debug = False,
) -> None:
    """Be one of the workers that share a pipeline, until SIGTERM or Ctrl-C."""
    from millwheel.cli.target import load_pipeline

    pipeline = load_pipeline(target)
    if until_done and keep_open:
        from millwheel.errors import UsageError

        raise UsageError(
            "--until-done ends when event time does, which --keep-open never lets it: give one of them"
        )
    from millwheel.cli.worker import neighbourhood, tls, work
    from millwheel.services.endpoint import Endpoint

    encryption = tls(
        tls_certificate, tls_key, tls_authority, mutual=not tls_one_way, check_host=not tls_any_host
    )
    work(
        pipeline,
        store,
        neighbourhood(listen, advertise, secret_file, encryption),
        http=None if http is None else Endpoint.parse(http),
        until_done=until_done,
        keep_open=keep_open,
        accept_late=accept_late,
        stop_with_stdin=stop_with_stdin,
    )


@app.command()
@command
def graph(
    target: Target,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a pipeline's graph and print it; nothing is started."""
    from millwheel.cli.target import load_pipeline
    from millwheel.errors import UsageError

    if mermaid and as_json:
        raise UsageError("choose one of --mermaid and --json")
    found = load_pipeline(target).graph()
    if as_json:
        from millwheel.cli.output import print_json

        print_json({"pipeline": found.name, **found.describe()})
    else:
        typer.echo(found.mermaid() if mermaid else found.text())


@app.command()
@command
def migrate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:PIPELINE|NAME", help="A pipeline, or its name.", show_default=False
        ),
    ],
    store: Store = None,
    debug: Debug = False,
) -> None:
    """Make a pipeline's schema, or bring it to this version's. Embedded stores do it by themselves."""
    from millwheel.cli.store import migrate

    migrate(target, store)


@app.command()
@command
def status(
    pipeline: Annotated[
        str | None, typer.Argument(help="One pipeline; else all.", show_default=False)
    ] = None,
    store: Store = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again and again, with rates, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=3600,
            metavar="SECONDS",
            help="Between two looks of --watch. Else 1.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show workers, watermarks and what holds them, backlog and counters."""
    if watch:
        from millwheel.cli.watch import watch as watch_status

        watch_status(pipeline, store, seconds=interval or 1.0, as_json=as_json)
        return
    if interval is not None:
        from millwheel.errors import UsageError

        raise UsageError("--interval goes with --watch")
    from millwheel.cli.store import status

    status(pipeline, store, as_json=as_json)


PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", show_default=False)]
Injectors = Annotated[
    list[str] | None,
    typer.Argument(metavar="INJECTOR", help="Else all of them.", show_default=False),
]


@app.command()
@command
def pause(
    pipeline: PipelineName, injectors: Injectors = None, store: Store = None, debug: Debug = False
) -> None:
    """Let injectors read no more. What they have read is processed; watermarks stand still."""
    from millwheel.cli.store import pause

    pause(pipeline, injectors or [], store, paused=True)


@app.command()
@command
def resume(
    pipeline: PipelineName, injectors: Injectors = None, store: Store = None, debug: Debug = False
) -> None:
    """Let injectors that were paused read on where they stopped."""
    from millwheel.cli.store import pause

    pause(pipeline, injectors or [], store, paused=False)


@app.command()
@command
def sql(
    statements: Annotated[
        list[str],
        typer.Argument(
            metavar="STATEMENT...",
            help="A SELECT, for example. Several statements read one snapshot.",
            show_default=False,
        ),
    ],
    store: Store = None,
    pipeline: OnePipeline = None,
    form: Annotated[
        Literal["table", "csv", "json"], typer.Option("--format", "-f", help="How to print rows.")
    ] = "table",
    timeout: Annotated[
        float, typer.Option(min=0.001, max=86400, help="Seconds each statement may take.")
    ] = 60.0,
    debug: Debug = False,
) -> None:
    """Run SQL that only reads, on the store. Tables, and views like states and watermarks."""
    from millwheel.cli.store import sql

    sql(statements, store, pipeline, form, timeout)


@dead_letters.command("list")
@command
def list_dead_letters(
    store: Store = None,
    pipeline: OnePipeline = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the newest."""
    from millwheel.cli.store import list_dead_letters

    list_dead_letters(store, pipeline, limit, as_json=as_json)


@dead_letters.command("show")
@command
def show_dead_letter(
    number: Annotated[int, typer.Argument(metavar="ID", show_default=False)],
    store: Store = None,
    pipeline: OnePipeline = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show one with its traceback."""
    from millwheel.cli.store import show_dead_letter

    show_dead_letter(number, store, pipeline, as_json=as_json)


@dead_letters.command("discard")
@command
def discard_dead_letters(
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="ID...", show_default=False)
    ] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="All of the pipeline's.")] = False,
    store: Store = None,
    pipeline: OnePipeline = None,
    debug: Debug = False,
) -> None:
    """Forget some, or all: they are gone for good."""
    from millwheel.cli.store import discard_dead_letters

    discard_dead_letters(numbers or [], store, pipeline, all_of_them=all_of_them)


IntervalId = Annotated[int, typer.Argument(metavar="ID", show_default=False)]
Timeout = Annotated[
    float, typer.Option(min=0.0, metavar="SECONDS", help="How long to wait until it is done.")
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Only say what is wished; workers do it in their time.")
]


@intervals.command("list")
@command
def list_intervals(
    store: Store = None,
    pipeline: OnePipeline = None,
    events: Annotated[
        int, typer.Option(min=0, metavar="N", help="Also the newest N things decided or done.")
    ] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List intervals, who owns them, and what they cost."""
    from millwheel.cli.intervals import list_intervals

    list_intervals(store, pipeline, events, as_json=as_json)


@intervals.command("move")
@command
def move_interval(
    interval: IntervalId,
    worker: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKER", help="The beginning of its id will do.", show_default=False
        ),
    ] = None,
    anywhere: Annotated[
        bool,
        typer.Option("--anywhere", "--unpin", help="Let the balancer say again where it is."),
    ] = False,
    store: Store = None,
    pipeline: OnePipeline = None,
    timeout: Timeout = 30.0,
    no_wait: NoWait = False,
    debug: Debug = False,
) -> None:
    """Give an interval to a worker; it stays there while that worker lives."""
    from millwheel.cli.intervals import move
    from millwheel.errors import UsageError

    if anywhere == (worker is not None):
        raise UsageError("say which worker is to have it, or --anywhere")
    move(interval, worker, store, pipeline, None if no_wait else timeout)


@intervals.command("split")
@command
def split_interval(
    interval: IntervalId,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="SLOT",
            help="The first slot of the upper part. Else where its load has its median, or its "
            "slots their middle.",
            show_default=False,
        ),
    ] = None,
    store: Store = None,
    pipeline: OnePipeline = None,
    timeout: Timeout = 30.0,
    no_wait: NoWait = False,
    debug: Debug = False,
) -> None:
    """Make two intervals of one."""
    from millwheel.cli.intervals import split

    split(interval, at, store, pipeline, None if no_wait else timeout)


@intervals.command("merge")
@command
def merge_intervals(
    lower: Annotated[int, typer.Argument(metavar="LOWER", show_default=False)],
    upper: Annotated[int, typer.Argument(metavar="UPPER", show_default=False)],
    store: Store = None,
    pipeline: OnePipeline = None,
    timeout: Timeout = 30.0,
    no_wait: NoWait = False,
    debug: Debug = False,
) -> None:
    """Make two neighbours one interval, where the lower one is."""
    from millwheel.cli.intervals import merge

    merge(lower, upper, store, pipeline, None if no_wait else timeout)


@app.command()
@command
def drop(
    pipeline: Annotated[str, typer.Argument(help="Its name.", show_default=False)],
    store: Store = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    debug: Debug = False,
) -> None:
    """Remove a pipeline: its state, its results, everything in its schema."""
    from millwheel.cli.store import drop

    drop(pipeline, store, sure=yes)


@app.command()
@command
def remove(
    pipeline: Annotated[str, typer.Argument(help="Its name.", show_default=False)],
    computations: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Computations, or injectors.", show_default=False),
    ],
    store: Store = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    debug: Debug = False,
) -> None:
    """Take computations out of a pipeline, which may go on running: their state is given up."""
    from millwheel.cli.store import remove

    remove(pipeline, computations, store, sure=yes)


@app.command()
@command
def stop(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The store's.", show_default=False)
    ] = None,
    debug: Debug = False,
) -> None:
    """Stop the embedded Postgres of a directory, whoever uses it."""
    from millwheel.cli.store import stop

    stop(directory)


@app.command()
@command
def spark(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="A function of a millwheel.spark.Job.",
            show_default=False,
        ),
    ],
    store: Store = None,
    pipeline: OnePipeline = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where the job's files go.")] = Path(
        ".millwheel"
    )
    / "output",
    debug: Debug = False,
) -> None:
    """Run a PySpark function on one snapshot of a pipeline's tables and views."""
    from millwheel.spark import run_job
    from millwheel.store.address import StoreAddress
    from millwheel.store.presence import present

    with present(StoreAddress.parse(store)) as presence:
        run_job(target, presence.url, pipeline, output=output)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
