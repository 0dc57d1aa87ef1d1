"""A file of SQL alone is a pipeline."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from millwheel.cli.sql_files import sources
from millwheel.cli.target import load_pipeline
from millwheel.errors import SqlError, UsageError
from millwheel.services.run import Run
from millwheel.store.console.migrate import migrate

START = datetime(2024, 1, 1, tzinfo=UTC)
TEXT = """
-- Payments by minute and account.
CREATE SOURCE payments (
    at timestamptz NOT NULL, account text NOT NULL, cents bigint NOT NULL, note text,
    WATERMARK FOR at AS at - INTERVAL '10 seconds'
) WITH (connector = 'files', path = '{path}');

CREATE TABLE per_minute (
    account text, minute timestamptz, payments int, cents numeric(20, 0), all_payments int,
    PRIMARY KEY (account, minute)
);

CREATE STREAM noted AS SELECT account, at, cents FROM payments WHERE note IS NOT NULL;

INSERT INTO per_minute
SELECT account, window_start, count(*), sum(cents), count(*) + 0
FROM TUMBLE(noted, at, INTERVAL '1 minute')
GROUP BY account, window_start;
"""


def written(directory: Path, text: str = TEXT) -> str:
    path = directory / "bank_of_sql.sql"
    path.write_text(text.replace("{path}", str(directory / "payments.jsonl")))
    return str(path)


async def test_a_file_of_sql_runs_on_postgres(
    postgres_url: Callable[[int], str], tmp_path: Path
) -> None:
    expected: dict[tuple[str, datetime], list[int]] = defaultdict(lambda: [0, 0])
    with (tmp_path / "payments.jsonl").open("w") as lines:
        for number in range(500):
            at = START + timedelta(seconds=number)
            account, cents = "abc"[number % 3], number % 100
            note = "tea" if number % 4 else None
            row = {"at": at.isoformat(), "account": account, "cents": cents, "note": note}
            lines.write(json.dumps(row) + "\n")
            if note is not None:
                sums = expected[account, at.replace(second=0)]
                sums[0] += 1
                sums[1] += cents
    pipeline = load_pipeline(written(tmp_path))
    assert pipeline.name == "bank_of_sql"
    assert set(sources(pipeline)) == {"make_noted", "make_per_minute_partials"}
    url = postgres_url(18)
    migrate(url, pipeline.name)
    await Run(pipeline, url).run()
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT * FROM bank_of_sql.per_minute").fetchall()
        connection.execute("SET client_min_messages = warning")
        connection.execute("DROP SCHEMA bank_of_sql CASCADE")
    assert all(row[2] == row[4] for row in rows)
    assert {(row[0], row[1]): [row[2], int(row[3])] for row in rows} == expected


async def test_rows_go_to_files(postgres_url: Callable[[int], str], tmp_path: Path) -> None:
    lines = [json.dumps({"at": START.isoformat(), "account": "ann", "cents": n}) for n in range(9)]
    (tmp_path / "payments.jsonl").write_text("\n".join(lines) + "\n")
    source = TEXT.partition("CREATE TABLE")[0]
    text = (
        f"{source} CREATE STREAM odd AS SELECT cents FROM payments WHERE cents % 2 = 1;"
        f"CREATE SINK files FROM odd WITH (connector = 'files', path = '{tmp_path}/odd');"
        "CREATE SINK shown FROM odd WITH (connector = 'console', prefix = 'odd: ');"
    )
    pipeline = load_pipeline(written(tmp_path, text))
    url = postgres_url(18)
    migrate(url, pipeline.name)
    await Run(pipeline, url).run()
    with psycopg.connect(url) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute("DROP SCHEMA bank_of_sql CASCADE")
    found = [
        json.loads(line)["cents"]
        for part in (tmp_path / "odd").glob("*.jsonl")
        for line in part.read_text().splitlines()
    ]
    assert sorted(found) == [1, 3, 5, 7]


SOURCE = (
    "CREATE SOURCE s (at timestamptz NOT NULL, n int, WATERMARK FOR at AS at) WITH (connector = "
    "'inbox');\n"
)
KEPT = "CREATE STREAM k AS SELECT n, count(*) AS c FROM s GROUP BY n RETAIN UNBOUNDED;\n"
WRONG = [
    (SOURCE + "CREATE SINK x WITH (connector = 'console')", "WITH (connector = 'con", "FROM is"),
    (SOURCE + "CREATE SINK x FROM t WITH (connector = 'console')", "t WITH", "The streams are: s"),
    (SOURCE + "CREATE SINK x FROM s WITH (connector = 'ftp')", "connector = 'ftp", "files, con"),
    (SOURCE + "CREATE SINK x FROM s WITH (connector = 'files')", "CREATE SINK", "needs path"),
    (SOURCE + "CREATE SINK x FROM s WITH (connector = 'console', y = 1)", "y =", "this sink"),
    (SOURCE + "CREATE SINK x FROM s WITH (connector = 'kafka', brokers = 'b', topic = 't', "
     "key = 'm')", "key =", '"s" has no column m'),
    (SOURCE + KEPT + "CREATE SINK x FROM k WITH (connector = 'files', path = 'x')", "CREATE SINK",
     "no longer be in their order there"),
    ("CREATE VIEW v AS SELECT 1", "VIEW", "SOURCE, STREAM, TABLE or SINK is missing"),
    ("CREATE SOURCE s (n int)", None, "WITH is missing here"),
    ("CREATE SOURCE s (n int) WITH (path = 'x')", "CREATE", "the source needs connector"),
    ("CREATE SOURCE s (n int) WITH (connector = 'ftp')", "connector", "Available are files, inbox"),
    ("CREATE SOURCE s (n int) WITH (connector = 'files')", "CREATE", "the source needs path"),
    ("CREATE SOURCE s (n int) WITH (connector = 'inbox', x = 1)", "x =", "there is no option x"),
    ("CREATE SOURCE s (n int, n text) WITH (connector = 'inbox')", "n text", "is there twice"),
    ("CREATE SOURCE s (n nosuch) WITH (connector = 'inbox')", "nosuch", "is not available"),
    ("CREATE SOURCE s (n int, WATERMARK FOR n AS n) WITH (connector = 'inbox')", "n AS", "integer"),
    ("CREATE SOURCE s (at timestamptz, WATERMARK FOR at AS now()) WITH (connector = 'inbox')",
     "now", "a watermark is the time, or the time minus an interval"),
    ("CREATE SOURCE s (at timestamptz, WATERMARK FOR x AS x) WITH (connector = 'inbox')", "x AS",
     'column "x" does not exist'),
    (SOURCE + SOURCE, "CREATE", '"s" exists already'),
    (SOURCE + "CREATE TABLE s (n int)", "CREATE TABLE", '"s" exists already'),
    ("CREATE TABLE t (n int, PRIMARY KEY (m))", "CREATE", 'column "m" of the key does not exist'),
    (SOURCE + "CREATE TABLE t (n int)", "CREATE TABLE", 'nothing is inserted into the table "t"'),
    (SOURCE + "CREATE TABLE t (n timestamp)", "n timestamp", "Use timestamptz"),
    ("CREATE SOURCE s (class int) WITH (connector = 'inbox')", "class", "no word of Python"),
    ("CREATE SOURCE s (n jsonb) WITH (connector = 'inbox')", "n jsonb", "the type jsonb"),
    (SOURCE + "CREATE TABLE t (n int, m int); INSERT INTO t SELECT n FROM s", "SELECT",
     "the query has 1 columns, and 2 are inserted"),
    (SOURCE + "CREATE TABLE t (n int NOT NULL); INSERT INTO t SELECT n FROM s", "n FROM",
     "is NOT NULL, and the query may give NULL"),
    (SOURCE + "CREATE TABLE t (n int); INSERT INTO t SELECT at FROM s", "at FROM",
     "this is timestamp with time zone, and integer is needed"),
    (SOURCE + "CREATE TABLE t (n int); INSERT INTO t (m) SELECT n FROM s", "INSERT",
     'column "m" of "t" does not exist'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "at", "says"), WRONG, ids=[text for text, _, _ in WRONG])
def test_a_wrong_definition_is_refused_where_it_is_wrong(
    text: str, at: str | None, says: str, tmp_path: Path
) -> None:
    with pytest.raises(SqlError) as raised:
        load_pipeline(written(tmp_path, text))
    assert says in str(raised.value)
    start = len(SOURCE) if text.startswith(SOURCE) else 0
    wanted = len(text) if at is None else text.index(at, start)
    assert raised.value.place.offset == wanted, raised.value.place.underlined()


def test_a_file_that_cannot_name_a_pipeline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "My Bank.sql").write_text(SOURCE)
    with pytest.raises(UsageError, match="cannot name a pipeline"):
        load_pipeline(str(tmp_path / "My Bank.sql"))
    with pytest.raises(UsageError, match="cannot be read"):
        load_pipeline("nosuch.sql")
