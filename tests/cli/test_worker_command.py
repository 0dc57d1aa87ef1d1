"""``millwheel worker`` and ``millwheel run --workers``, as those meet them who type them.

The pipelines are those of `tests.support.shells`, on a Postgres that somebody else runs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from millwheel.services.crew import Crew, WorkerFailed
from millwheel.services.interruption import LAST_WORDS
from millwheel.store import embedded
from tests.support.certificates import Authority
from tests.support.servers import reachable_directory
from tests.support.shells import MODULE, Rows, Running, Shell, expected, lines, on_a_terminal
from tests.support.store_sites import Schema

SECONDS = 60
SECRET = "sixteen bytes or more"


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Where the module is; the account of a server can reach a store in it."""
    path = reachable_directory("mw-worker-")
    (path / "wheel.py").write_text(MODULE)
    yield path
    shutil.rmtree(path)


class Workers(Shell):
    """Commands on a store by its URL."""

    def worker(self, *arguments: str, **environment: str) -> Running:
        return self.start("worker", "wheel:pipeline", *arguments, **environment)

    def refused(self, *arguments: str, code: int = 2, **environment: str) -> str:
        """What a worker says that ends with an error; nothing of it was deployed."""
        told = self("worker", "wheel:pipeline", *arguments, code=code, **environment)
        assert self.rows("SELECT count(*) FROM {}", "generation") == [(0,)]
        assert told.count("error: ") == 1
        return told[told.index("error: ") + len("error: ") :].rstrip("\n")

    def rows(self, query: str, table: str) -> list[Any]:
        with psycopg.connect(self.url()) as connection:
            text = sql.SQL(query).format(sql.Identifier(self.name, table))
            return connection.execute(text).fetchall()

    def wait(self, true: Callable[[], object], *alive: Running) -> None:
        """Until the store says so, which tells nobody by itself."""
        deadline = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < deadline
            for running in alive:
                assert running.process.poll() is None
            time.sleep(0.02)

    def has_ended(self) -> bool:
        """Whether all windows were closed."""
        return self.rows("SELECT min(low_watermark) = 'infinity' FROM {}", "watermarks") == [
            (True,)
        ]

    def total(self) -> int:
        """Words counted in closed windows."""
        ((found,),) = self.rows("SELECT coalesce(sum(value), 0)::int FROM {}", "counts")
        return int(found)

    def free(self) -> bool:
        """Whether no interval has an owner."""
        return self.rows("SELECT count(owner) FROM {}", "key_interval") == [(0,)]


@pytest.fixture
def shell(
    directory: Path, new_schema: Callable[[int], Schema], request: pytest.FixtureRequest
) -> Iterator[Workers]:
    """Commands on a Postgres that somebody else runs, where the pipeline's schema is there."""
    schema = new_schema(18)
    found = Workers(directory, schema.url, request.node.name.split("[")[0][:48], schema.name)
    yield found
    found.end()


def listening(running: Running) -> str:
    """Where a worker with ``--http`` answers."""
    found: str = running.until(lambda line: line["event"] == "http_listening")["url"]
    return found


def ask(url: str, path: str) -> tuple[int, str]:
    """Status and text of an answer."""
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def started(running: Running) -> str:
    """Wait until a worker has; gives the beginning of its id."""
    found: str = running.until(lambda line: line["event"] == "started")["worker"]
    return found


def gated(shell: Workers) -> Rows:
    """Input in the middle of which a worker stays until the gate is open."""
    rows = lines(600)
    rows[400]["text"] = "gate"
    shell.write(rows)
    shell.environment["GATE"] = str(shell.gate)
    return rows


# -- nothing is started ----------------------------------------------------------------------------

PEM = ("--tls-certificate", "none.pem", "--tls-key", "none.key")
WRONG: dict[tuple[str, ...], str] = {
    (
        "--listen",
        "nonsense",
    ): "'nonsense' is not of the form HOST:PORT, as in 127.0.0.1:9464; port 0 picks a free port",
    ("--listen", "::1:70"): "'::1:70': write an IPv6 address in brackets, as in [::1]:9464",
    ("--http", "localhost:x"): (
        "'localhost:x' is not of the form HOST:PORT, as in 127.0.0.1:9464; port 0 picks a free port"
    ),
    (
        "--advertise",
        "here:70000",
    ): "'here:70000' is not an address: write host, host:port or, for IPv6, [::1]:7340",
    (
        "--advertise",
        "fe80::1",
    ): "'fe80::1' is not an address: write host, host:port or, for IPv6, [::1]:7340",
    (
        "--secret-file",
        "nowhere",
    ): "--secret-file nowhere cannot be read: No such file or directory",
    ("--tls-certificate", "a.pem"): "--tls-certificate and --tls-key need each other",
    ("--tls-key", "a.key"): "--tls-certificate and --tls-key need each other",
    ("--tls-authority", "a.pem"): "--tls-authority needs --tls-certificate and --tls-key",
    ("--tls-one-way",): "--tls-one-way needs --tls-certificate and --tls-key",
    ("--tls-any-host",): "--tls-any-host needs --tls-certificate and --tls-key",
    (*PEM,): (
        "TLS cannot be set up with the certificate none.pem, the key none.key and the "
        "system's CAs: [Errno 2] No such file or directory"
    ),
    (
        *PEM,
        "--tls-any-host",
    ): (
        "TLS without an authority of its own trusts all CAs of the system, so it must check the "
        "host name too: anyone can get such a certificate"
    ),
}


EACH = """
import json, sys
from typer.testing import CliRunner
from millwheel.cli.main import app

for arguments in json.load(sys.stdin):
    done = CliRunner().invoke(app, ["worker", "wheel:pipeline", *arguments])
    print(json.dumps([done.exit_code, done.stderr.splitlines()[-1]]))
"""
"""One process for all of them."""


def test_options_that_make_no_sense_or_are_not_safe_are_refused(shell: Workers) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", EACH],
        input=json.dumps(list(WRONG)),
        cwd=shell.directory,
        env=shell.environment | {"MILLWHEEL_STORE": "never-made"},
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told == [[2, f"error: {wrong}"] for wrong in WRONG.values()]
    assert not (shell.directory / "never-made").exists(), "nothing was started"


@pytest.mark.parametrize("by", ["file", "environment"])
def test_a_secret_that_can_be_guessed_is_refused(by: str, shell: Workers) -> None:
    (shell.directory / "short").write_text("  fifteen bytes..\n")
    if by == "file":
        told = shell.refused("--secret-file", "short")
    else:
        told = shell.refused(MILLWHEEL_SECRET="fifteen bytes..")
    assert told.startswith("the workers' shared secret has 15 bytes; a secret of fewer than 16")
    assert "secrets.token_hex(16)" in told
    (shell.directory / "empty").write_text("\n")
    assert "has 0 bytes" in shell.refused("--secret-file", "empty", MILLWHEEL_SECRET=SECRET)


@pytest.mark.parametrize("option", ["--listen", "--http"])
def test_a_port_that_is_in_use(option: str, shell: Workers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = shell.refused(option, f"127.0.0.1:{port}")
    said = {
        "--listen": f"cannot listen for other workers on 127.0.0.1:{port}: Address already in use",
        "--http": f"cannot listen for HTTP on 127.0.0.1:{port}: Address already in use",
    }
    assert told.startswith(said[option])
    assert f"Give another HOST:PORT with {option}" in told


def test_no_such_store(shell: Workers) -> None:
    told = shell.refused("--store", "postgresql://u:password@127.0.0.1:1/nothing", code=7)
    assert "the store postgresql://u:***@127.0.0.1:1/nothing cannot be reached" in told
    assert "Check --store" in told


def test_a_plain_postgres_is_not_migrated_behind_its_owners_back(shell: Workers) -> None:
    told = shell("worker", "wheel:pipeline", code=3, NAME="not_there_yet")
    assert "millwheel migrate" in told
    assert "not_there_yet" in told
    assert "not_there_yet" not in shell("status")


# -- a worker's life -------------------------------------------------------------------------------


def test_until_done(shell: Workers) -> None:
    shell.cold = True
    rows = lines(600)
    shell.write(rows)
    worker = shell.worker("--until-done")
    code, stdout, stderr = worker.end()
    assert (code, stdout) == (0, ""), stderr
    told = [json.loads(line) for line in stderr.splitlines()]
    assert {"started", "took", "progress"} <= {line["event"] for line in told}
    assert all({"level", "timestamp"} <= set(line) for line in told)
    assert shell.counts() == expected(rows)
    assert shell.free()


def test_it_waits_for_more_until_sigterm_and_hands_everything_over(shell: Workers) -> None:
    rows = lines(300)
    shell.write(rows)
    worker = shell.worker("--http", "127.0.0.1:0", "--keep-open")
    url = listening(worker)
    started(worker)
    shell.wait(lambda: json.loads(ask(url, "/status")[1])["computations"][0]["intervals"], worker)
    assert ask(url, "/healthz") == (200, "ok\n")
    assert ask(url, "/readyz") == (200, "ready\n")
    assert "millwheel_lease_seconds_left" in ask(url, "/metrics")[1]
    status = json.loads(ask(url, "/status")[1])
    assert (status["pipeline"], status["fenced"]) == (shell.name, 0)
    assert ask(url, "/nothing")[0] == 404
    ((secret,),) = shell.rows("SELECT secret FROM {}", "peer_secret")
    shown = ask(url, "/metrics")[1] + ask(url, "/status")[1]
    shell.wait(shell.total, worker)
    assert not shell.has_ended(), "there may be more"
    began = time.monotonic()
    code, _, stderr = worker.end(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert time.monotonic() - began < 10
    events = [json.loads(line)["event"] for line in stderr.splitlines()]
    assert "stopping" in events
    assert "not_handed_over" not in events
    shown += json.dumps(worker.log) + stderr
    assert len(secret) == 32
    for form in (secret.hex(), str(secret), base64.b64encode(secret).decode()):
        assert form not in shown, "nobody is shown it"
    told = [line["event"] for line in worker.log] + events
    assert told.count("progress") <= 1, "every ten seconds"
    assert shell.free()
    assert shell.rows("SELECT stopped FROM {}", "worker") == [(True,)]
    shell("worker", "wheel:pipeline", "--until-done")
    assert shell.counts() == expected(rows)


def test_it_says_that_it_stops_while_it_does(shell: Workers) -> None:
    """User code that does not come to its end is waited for a while; a probe is told."""
    rows = gated(shell)
    worker = shell.worker("--http", "127.0.0.1:0")
    url = listening(worker)
    shell.wait(lambda: shell.rows("SELECT count(*) > 0 FROM {}", "states")[0][0], worker)
    assert ask(url, "/readyz") == (200, "ready\n")
    worker.process.send_signal(signal.SIGTERM)
    worker.until(lambda line: line["event"] == "stopping")
    assert ask(url, "/readyz") == (503, "not ready: it is stopping\n")
    assert ask(url, "/healthz") == (200, "ok\n")
    code, _, _ = worker.end()
    assert code == 128 + signal.SIGTERM
    shell.gate.touch()
    shell("worker", "wheel:pipeline", "--until-done")
    assert shell.counts() == expected(rows)


def test_it_says_that_it_starts_until_it_has(shell: Workers) -> None:
    shell.write(lines(10))
    with psycopg.connect(shell.url()) as other:
        other.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(shell.name, "generation")))
        worker = shell.worker("--until-done", "--http", "127.0.0.1:0")
        url = listening(worker)
        assert ask(url, "/readyz") == (503, "not ready: it is still starting\n")
        assert ask(url, "/healthz") == (200, "ok\n")
    started(worker)
    assert worker.end()[0] == 0


def test_sigterm_while_it_starts(shell: Workers) -> None:
    shell.write(lines(10))
    with psycopg.connect(shell.url()) as other:
        other.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(shell.name, "generation")))
        worker = shell.worker("--http", "127.0.0.1:0")
        listening(worker)
        worker.process.send_signal(signal.SIGTERM)
        worker.until(lambda line: line["event"] == "stopping")
    assert worker.end()[0] == 128 + signal.SIGTERM


def test_a_second_sigterm_ends_it_at_once(shell: Workers) -> None:
    gated(shell)
    worker = shell.worker()
    shell.wait(lambda: shell.rows("SELECT count(*) > 0 FROM {}", "states")[0][0], worker)
    worker.process.send_signal(signal.SIGTERM)
    worker.until(lambda line: line["event"] == "stopping")
    code, _, stderr = worker.end(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert LAST_WORDS.decode().strip() in stderr
    assert not shell.free(), "it had no time for that"


# -- among others ----------------------------------------------------------------------------------


def test_a_secret_by_file_is_the_same_as_by_the_environment(shell: Workers) -> None:
    shell.write(lines(100))
    (shell.directory / "secret").write_text(f"{SECRET}\n")
    one = shell.worker("--secret-file", "secret", MILLWHEEL_SECRET="of no concern: a file is given")
    other = shell.worker("--listen", "127.0.0.1:0", MILLWHEEL_SECRET=SECRET)
    for running in (one, other):
        running.until(lambda line: line["event"] == "link_up")
    stranger = shell.worker("--until-done", MILLWHEEL_SECRET="another sixteen bytes")
    told = stranger.until(lambda line: line["event"] in ("link_up", "link_down"))
    assert told["event"] == "link_down"
    assert "the two workers have different shared secrets" in told["reason"]
    naive = shell.worker("--until-done")
    told = naive.until(lambda line: line["event"] in ("link_up", "link_down"))
    assert told["event"] == "link_down"
    assert told["secret"] == "the secret in the store", "which one it goes by"
    for running in (one, other, stranger, naive):
        assert running.end(signal.SIGTERM)[0] == 128 + signal.SIGTERM


def test_another_graph_is_refused_and_those_who_are_there_go_on(shell: Workers) -> None:
    rows = gated(shell)
    first = shell.worker("--until-done")
    started(first)
    other = MODULE.replace("Tumbling(minutes=1)", "Tumbling(minutes=2)")
    (shell.directory / "wider.py").write_text(other)
    for _ in range(2):
        told = shell("worker", "wider:pipeline", code=4)
        assert "windows: another rule that stored state was made by" in told
    shell.gate.touch()
    assert first.end()[0] == 0
    assert shell.counts() == expected(rows)


def test_tls_between_two_processes(shell: Workers, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl on this machine to make certificates with")
    rows = lines(600)
    shell.write(rows)
    certificate, key = Authority(tmp_path, "ours").certificate("here", "IP:127.0.0.1")
    tls = ("--tls-certificate", certificate, "--tls-key", key, "--tls-authority")
    arguments = [*map(str, tls), str(tmp_path / "ours.pem")]
    first = shell.worker(*arguments)
    started(first)
    second = shell.worker(*arguments)
    for running in (first, second):
        running.until(lambda line: line["event"] == "link_up")
    (address,), *_ = shell.rows("SELECT address FROM {}", "worker")
    host, _, port = address.rpartition(":")
    assert ssl.get_server_certificate((host, int(port))) == certificate.read_text()
    shell.wait(lambda: len(shell.rows("SELECT DISTINCT owner FROM {}", "key_interval")) == 2)
    shell.wait(lambda: shell.total() > 0, first, second)
    for running in (first, second):
        assert running.end(signal.SIGTERM)[0] == 128 + signal.SIGTERM
    assert shell.worker(*arguments, "--until-done").end()[0] == 0
    assert shell.counts() == expected(rows)


def test_a_certificate_of_another_authority_owns_nothing(shell: Workers, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl on this machine to make certificates with")
    gated(shell)
    shell.environment |= {"LEASE": "4", "PLACEMENT": "0.2"}

    def tls(authority: str) -> list[str]:
        certificate, key = Authority(tmp_path, authority).certificate(
            f"{authority}-host", "IP:127.0.0.1"
        )
        pem = tmp_path / f"{authority}.pem"
        tls = ("--tls-certificate", certificate, "--tls-key", key, "--tls-authority", pem)
        return [*map(str, tls)]

    first = shell.worker(*tls("ours"))
    started(first)
    stranger = shell.worker(*tls("theirs"))
    told = stranger.until(lambda line: line["event"] in ("link_up", "link_down"))
    assert told["event"] == "link_down"
    assert "certificate" in told["reason"]
    # Once a lease is over without a link, after twenty looks at who should own what.
    told = stranger.until(lambda line: line["event"] == "out_of_touch")
    own = first.log[-1]["worker"]
    assert told["others"] == [own]
    claims = "SELECT DISTINCT to_worker FROM {} WHERE what = 'claim'"
    for asked, table in ((claims, "placement_event"), ("SELECT owner FROM {}", "key_interval")):
        assert {str(worker)[:8] for (worker,) in shell.rows(asked, table)} == {own}
    for running in (first, stranger):
        assert running.end(signal.SIGTERM)[0] == 128 + signal.SIGTERM


# -- several of one command ------------------------------------------------------------------------


def test_workers_close_all_windows_at_the_end(shell: Workers) -> None:
    told = shell("run", "wheel:pipeline", "--workers", "2", "--keep-open", code=2)
    assert (
        told == "error: --workers runs to the end of the input and closes all windows there, so it "
        "cannot be combined with --keep-open\n"
    )
    told = shell("worker", "wheel:pipeline", "--until-done", "--keep-open", code=2)
    assert "give one of them" in told, "it would never end"


def test_several_workers_on_a_store_of_their_own(directory: Path) -> None:
    """A directory: its server is made, shared by all, and gone in the end."""
    store = directory / "theirs"
    shell = Shell(directory, str(store), "theirs")
    rows = lines(600)
    shell.write(rows)
    try:
        told = json.loads(shell("run", "wheel:pipeline", "--workers", "2", "--json"))
        assert (told["pipeline"], told["outcome"], told["signal"]) == ("theirs", "complete", None)
        assert told["processed"] > 600
        assert told["low_watermark"] == "infinity"
        assert embedded.status(store).state == "stopped"
        again = shell("run", "wheel:pipeline", "--workers", "2")
        assert again == "theirs: complete, nothing to do\n"
        embedded.start(store)
        assert shell.counts() == expected(rows)
    finally:
        embedded.remove(store)


def test_an_error_in_one_worker_ends_all_and_is_told_once(shell: Workers) -> None:
    rows = lines(400)
    rows[200]["text"] = "boom"
    shell.write(rows)
    running = shell.start("run", "wheel:pipeline", "--workers", "2")
    code, stdout, stderr = running.end()
    assert (code, stdout) == (6, ""), stderr
    assert stderr.count("LookupError: no such word") == 1, stderr
    assert stderr.count("wheel.py:") == 1, stderr
    assert 'raise LookupError("no such word")' in stderr
    last = stderr.splitlines()[-1]
    assert last.startswith("error: worker ")
    assert "of 2 ended with exit code 6, see above; the others were stopped" in last
    assert "Traceback" not in stderr
    assert shell.rows("SELECT bool_and(stopped) FROM {}", "worker") == [(True,)]


class Failing(Crew):
    """All of its workers meet the same record."""

    def _command(self) -> Sequence[str]:
        program = "import sys; sys.exit('warning\\nerror: no such word\\n  at wheel.py:45')"
        return (sys.executable, "-c", program)


async def test_the_same_error_of_several_workers_is_told_once() -> None:
    heard: list[Any] = []
    crew = Failing("wheel:pipeline", "store", 3, lambda worker, said: heard.append(said))
    with pytest.raises(WorkerFailed, match="of 3 ended with exit code 1"):
        await crew.run(asyncio.Event())
    heard = [said for said in heard if said != "warning"]
    assert heard == ["error: no such word", "  at wheel.py:45"]


class Waiting(Crew):
    """Workers that do nothing until they are asked to end."""

    asked: asyncio.Event

    def _command(self) -> Sequence[str]:
        self.asked.set()  # one is about to be made
        return (sys.executable, "-c", "import sys; sys.stdin.read()")


async def test_a_worker_that_is_being_made_when_all_are_to_end_ends_too() -> None:
    crew = Waiting("wheel:pipeline", "store", 2, lambda worker, said: None)
    crew.asked = asyncio.Event()
    async with asyncio.timeout(SECONDS / 3):
        assert await crew.run(crew.asked) == "stopped"


def test_a_terminal_gets_one_bar_and_what_workers_warn_of_above_it(shell: Workers) -> None:
    gated(shell)
    killed = False

    def until(shown: bytes) -> bool:
        """Kills one worker in the middle; once that was told, Ctrl-C."""
        nonlocal killed
        if not killed and shell.rows("SELECT count(*) > 0 FROM {}", "states")[0][0]:
            (pid,), *_ = shell.rows("SELECT pid FROM {} WHERE NOT stopped", "worker")
            os.kill(pid, signal.SIGKILL)
            killed = True
        return b"worker_killed" in shown

    code, shown = on_a_terminal(shell, "run", "wheel:pipeline", "--workers", "2", until=until)
    assert code == 128 + signal.SIGINT, shown
    assert "SIGKILL" in shown
    assert "records ·" in shown
    assert "stopped; run again to resume" in shown
    assert '"event"' not in shown, "lines for people"
