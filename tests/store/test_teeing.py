"""A fork gets each record once that is sent to an inbox of its original, from its moment on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import psycopg
import pytest

from millwheel import Discard, Inbox, Pipeline, Stream
from millwheel.errors import UsageError
from millwheel.services.registering import register_inboxes
from millwheel.store.console.administration import drop_pipeline
from millwheel.store.console.inspection import inspect
from millwheel.store.copies.forks import ForkKind, fork
from millwheel.store.copies.replacing import restore
from millwheel.store.copies.savepoints import make_savepoint
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest

SENDERS = 3
TEED = ForkKind(tee=True)


class Note(msgspec.Struct):
    number: int


NOTES = Stream("notes", Note)


@pytest.fixture
def inbox(schema: Schema) -> Schema:
    made = Pipeline("wheel")
    made.inject(NOTES, Inbox())
    made.sink(NOTES, Discard())
    register_inboxes(made, schema.url)
    return schema


def send(schema: Schema, number: int, name: str = "wheel") -> None:
    with psycopg.connect(schema.url, autocommit=True) as connection:
        value = msgspec.json.encode(Note(number)).decode()
        text = f"SELECT {name}.send('notes', %s::jsonb)"
        connection.execute(text.encode(), [value])


def waiting(schema: Schema, name: str) -> list[int]:
    """The numbers of the records that wait, in their order."""
    text = f"SELECT (value::jsonb ->> 'number')::int FROM {name}.sent_record ORDER BY seq"
    with psycopg.connect(schema.url) as connection:
        return [number for (number,) in connection.execute(text.encode())]


class Sender(threading.Thread):
    """Sends numbers until it is stopped, some of them together in a longer transaction."""

    def __init__(self, schema: Schema, number: int) -> None:
        super().__init__()
        self._schema, self._number = schema, number
        self.ended = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._schema.url) as connection:
            while not self.ended.is_set():
                for _ in range(1 + self._number % 4):
                    text = "SELECT wheel.send('notes', jsonb_build_object('number', %s::int))"
                    connection.execute(text, [self._number])
                    self._number += SENDERS
                time.sleep(0.002)
                connection.commit()


def test_each_record_is_in_both_once(inbox: Schema) -> None:
    senders = [Sender(inbox, number) for number in range(SENDERS)]
    for sender in senders:
        sender.start()
    names = [f"copy{number}" for number in range(4)]
    for name in names:
        time.sleep(0.2)
        fork(inbox.url, "wheel", name, kind=TEED)
    time.sleep(0.2)
    for sender in senders:
        sender.ended.set()
        sender.join()
    expected = waiting(inbox, "wheel")
    assert len(expected) == len(set(expected)) > 100
    for name in names:
        assert sorted(waiting(inbox, name)) == sorted(expected)
    with inspect(inbox.url) as inspection:
        assert inspection.pipelines() == [*names, "wheel"]


def test_the_order_of_a_sender_and_the_end(inbox: Schema) -> None:
    for number in range(3):
        send(inbox, number)
    made = fork(inbox.url, "wheel", "copy", kind=TEED)
    assert made.left_out == []
    for number in range(3, 6):
        send(inbox, number)
    send(inbox, 100, "copy")
    assert waiting(inbox, "wheel") == [*range(6)]
    assert waiting(inbox, "copy") == [*range(6), 100]
    again = fork(inbox.url, "copy", "copy2")
    assert again.left_out == []
    drop_pipeline(inbox.url, "copy")
    send(inbox, 6)
    assert waiting(inbox, "wheel") == [*range(7)]


def test_a_restored_pipeline_goes_on_sending_to_both(inbox: Schema) -> None:
    fork(inbox.url, "wheel", "copy", kind=TEED)
    make_savepoint(inbox.url, "wheel", "one")
    send(inbox, 1)
    restore(inbox.url, "wheel@one")
    send(inbox, 2)
    assert waiting(inbox, "copy") == [1, 2]


def test_what_was_begun_and_never_finished_is_dropped(
    inbox: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def nothing(*_: object) -> None:
        """The process is gone before it can drop what it has made."""

    monkeypatch.setattr("millwheel.store.copies.forks.copy_pipeline", killed)
    with monkeypatch.context() as gone:
        gone.setattr("millwheel.store.copies.teeing.drop_copy", nothing)
        with pytest.raises(KeyboardInterrupt):
            fork(inbox.url, "wheel", "copy", kind=TEED)
    assert schemas(inbox) == ["copy", "wheel"]
    with inspect(inbox.url) as inspection:
        assert inspection.pipelines() == ["wheel"]
    with pytest.raises(KeyboardInterrupt):
        fork(inbox.url, "wheel", "copy2", kind=TEED)
    assert schemas(inbox) == ["wheel"], "an interrupted one drops its own, and unfinished ones"
    send(inbox, 1)
    assert waiting(inbox, "wheel") == [1]


def schemas(schema: Schema) -> list[str]:
    text = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|public|inf)' ORDER BY 1"
    with psycopg.connect(schema.url) as connection:
        return [name for (name,) in connection.execute(text)]


@pytest.mark.parametrize(
    ("prepare", "origin", "message"),
    [
        (lambda schema: make_savepoint(schema.url, "wheel", "one"), "wheel@one", "as it is now"),
        (lambda schema: fork(schema.url, "wheel", "copy"), "wheel", "a schema 'copy' already"),
    ],
)
def test_refusals(
    inbox: Schema, prepare: Callable[[Schema], object], origin: str, message: str
) -> None:
    prepare(inbox)
    with pytest.raises(UsageError, match=message):
        fork(inbox.url, origin, "copy", kind=TEED)
