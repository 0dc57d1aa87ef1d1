"""Mistakes in the address of a store, in rights, in deploys and in statements to look at it."""

from __future__ import annotations

from tests.mistakes.entries import RUN, Failure, Mistake, Refusal, ShownBy

FORMS = "postgresql://user@host:5432/database"
CHECK = "Check --store, and that Postgres is running there"

ENTRIES: tuple[Mistake, ...] = (
    Refusal(
        53,
        "no Postgres",
        ("postgresql://127.0.0.1:1/shop cannot be reached", "Connection refused", CHECK),
        command=f"{RUN} --store postgresql://127.0.0.1:1/shop",
        code=7,
    ),
    Failure(
        54,
        "no such database",
        (
            "refuses the connection: connection failed",
            'database "nosuch" does not exist',
            "The server answers: make that database, for example with createdb, or name another",
        ),
        command=f"{RUN} --store {{store.other_database}}",
        code=7,
    ),
    Refusal(
        55,
        "no such host",
        ("postgresql://nosuch.invalid/shop cannot be reached: failed to resolve host", CHECK),
        command=f"{RUN} --store postgresql://nosuch.invalid/shop",
        code=7,
    ),
    Failure(
        56,
        "no such role",
        (
            'role "stranger" does not exist',
            "The server answers: correct user and password in --store, or let the server's",
        ),
        command=f"{RUN} --store {{store.other_login}}",
        code=7,
    ),
    Refusal(
        57,
        "a URL of another database system",
        ("--store is no address of a store: mysql:…", FORMS, "a directory, for an embedded"),
        command=f"{RUN} --store mysql://localhost/shop",
    ),
    Refusal(
        58,
        "a host and a port for a store",
        (
            "--store is a host and a port, without the rest of a URL",
            "write postgresql://USER@localhost:5432/DATABASE",
            "is written with ./ in front",
        ),
        command=f"{RUN} --store localhost:5432",
    ),
    Failure(
        59,
        "the schema is not made",
        ("the schema 'wheel' of the store is not there", "Run: millwheel migrate wheel --store '"),
        sql=("DROP SCHEMA wheel CASCADE",),
        code=3,
    ),
    Failure(
        60,
        "a login without rights",
        (
            "this login has no right to do that in the store: permission denied for schema wheel",
            "run `millwheel migrate PIPELINE --roles`, then GRANT",
        ),
        command=f"{RUN} --store '{{store.login_without_rights}}'",
        sql=("CREATE ROLE clerk LOGIN",),
        code=7,
    ),
    ShownBy(
        74,
        "two runs at once",
        ("is being run by process",),
        test="cli/test_cli.py::test_a_pipeline_that_runs_is_seen_and_kept_from_harm",
    ),
    Refusal(
        79,
        "the directory of a store cannot be made",
        (
            "cannot start the embedded server in /proc/store: ",
            "No such file or directory: '/proc/store'. Correct that, or give --store another dir",
        ),
        command=f"{RUN} --store /proc/store",
        code=7,
    ),
    ShownBy(
        82,
        "no room for an embedded store",
        (r"initdb.*\n?.*kB are free on the disk", "Only 0 kB are free on the disk"),
        test="store/test_embedded.py::test_a_full_disk_is_named_and_nothing_is_broken",
    ),
    ShownBy(
        101,
        "the size of windows is changed",
        ("impossible:  computation 'windowed → minutes', windows: another rule",),
        test="cli/test_plan.py::test_another_size_of_windows_is_refused_and_nothing_is_lost",
    ),
    Failure(
        105,
        "a statement to look has a typing error",
        ('Postgres refused the statement: syntax error at or near "SELEC"',),
        command="sql 'SELEC 1'",
        code=2,
    ),
    Failure(
        106,
        "a statement to look names no table",
        ('relation "totls" does not exist', "Did you mean totals?"),
        command="sql 'SELECT * FROM totls'",
        sql=("CREATE TABLE wheel.totals (customer text)",),
        code=2,
    ),
    Failure(
        107,
        "a statement to look deletes",
        ("this statement gives no rows, and it may only read: SELECT, WITH, TABLE,",),
        command="sql 'DELETE FROM totals'",
        sql=("CREATE TABLE wheel.totals (customer text)",),
        code=2,
    ),
    Refusal(
        108,
        "no store in a directory",
        ("there is no store in nothere. Run a pipeline first, or name the store with --store",),
        command="status --store nothere",
    ),
    Failure(
        109,
        "no such pipeline in the store",
        ("the store has no pipeline 'whel'", "Did you mean wheel?"),
        command="status whel",
        code=2,
    ),
)
