"""Frames and greetings as plain data: what passes, what is refused, and how."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from millwheel.errors import PeerError, UsageError
from millwheel.runtime.network import frames
from millwheel.runtime.network.frames import (
    Delivering,
    Frame,
    Hello,
    Introduction,
    Proof,
    Refuse,
    Splitter,
    Welcome,
    decode,
    encode,
)
from millwheel.runtime.network.handshake import Handshake, Identity, Secret
from millwheel.runtime.network.peer_ports import Limits

S = TypeVar("S", bound=msgspec.Struct)
LIMIT = 1 << 20
NONCES = (b"1" * 32, b"2" * 32)
SECRET = Secret(b"sixteen bytes or more", "given")

KINDS = [
    kind
    for base in (Frame, Delivering)
    for kind in base.__subclasses__()
    if kind.__struct_config__.tag
]
NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any values that a field of a frame may have."""
    if hint is int:
        return NUMBERS
    if get_origin(hint) is Annotated:
        kind, meta = get_args(hint)
        return restricted(kind, meta)
    parts: Any = getattr(hint, "__args__", ())
    if getattr(hint, "__origin__", None) is tuple:
        return st.tuples(*map(values, parts))
    if getattr(hint, "__origin__", None) is list:
        return st.lists(values(parts[0]), max_size=3)
    if getattr(hint, "__origin__", None) is dict:
        return st.dictionaries(values(parts[0]), values(parts[1]), max_size=3)
    if hint is float:
        return st.floats(0, 100)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return frame_of(hint)
    return st.from_type(hint)


def restricted(kind: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    """Values within the bounds that a frame's decoder checks."""
    if kind is int:
        low = meta.ge if meta.ge is not None else meta.gt + 1  # type: ignore[operator]
        high = meta.le if meta.le is not None else meta.lt - 1  # type: ignore[operator]
        return st.integers(low, high)  # type: ignore[arg-type]
    if kind is bytes:
        return st.binary(min_size=meta.min_length or 0, max_size=min(meta.max_length or 0, 40))
    return st.lists(values(get_args(kind)[0]), min_size=meta.min_length or 0, max_size=3)


def frame_of(kind: type[S]) -> st.SearchStrategy[S]:
    hints = get_type_hints(kind, vars(frames), include_extras=True)
    return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})


FRAMES = st.one_of(*map(frame_of, KINDS))


def test_every_kind_is_tried() -> None:
    assert len(KINDS) == 19


@given(FRAMES)
def test_a_frame_comes_out_as_it_went_in(frame: Frame) -> None:
    data = encode(frame, LIMIT)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert decode(bytes(data[4:])) == frame


@given(st.lists(FRAMES, max_size=5), st.randoms(use_true_random=False))
def test_it_does_not_matter_how_the_bytes_are_cut(sent: list[Frame], random: Any) -> None:
    data = b"".join(encode(frame, LIMIT) for frame in sent)
    splitter, found, begin = Splitter(LIMIT), [], 0
    while begin < len(data):
        end = begin + random.randint(1, 40)
        found += [decode(body) for body in splitter.feed(data[begin:end])]
        begin = end
    assert found == sent


def only_the_documented_error(body: bytes) -> None:
    with contextlib.suppress(PeerError):
        decode(body)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_by_the_documented_error(body: bytes) -> None:
    only_the_documented_error(body)


@given(FRAMES, st.data())
def test_damaged_frames_are_refused_by_the_documented_error(frame: Frame, data: Any) -> None:
    body = encode(frame, LIMIT)[4:]
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    only_the_documented_error(bytes(body[: data.draw(st.integers(0, len(body)))]))
    only_the_documented_error(bytes(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc0",
        b"\x91\x63",  # no such kind
        b"\x92\x04\xa2\xff\xfe",  # no UTF-8
        b"\x92\x04\xa1x" + b"\x91" * 100_000,  # more than a frame
        b"\x93\x04\xa1x" + b"\x91" * 100_000,  # too deep
        b"\x92\x09\xdd\xff\xff\xff\xff",  # a list of 2**32 - 1
        b"\x95\x01\x01\xa1p\xa1w\xc4\x01n",  # a short nonce
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_frame(body: bytes) -> None:
    with pytest.raises(PeerError, match="bytes are no valid frame"):
        decode(body)


def test_a_later_hello_may_say_more_and_is_still_understood() -> None:
    body = msgspec.msgpack.encode((1, 4, "p", "w", NONCES[0], "given", "cut"))
    assert decode(body) == Hello(4, "p", "w", NONCES[0])


def test_what_is_too_long_is_refused_unread() -> None:
    splitter = Splitter(100)
    with pytest.raises(PeerError, match="announces 101 bytes, above the limit of 100"):
        list(splitter.feed(b"\0\0\0\x65"))
    with pytest.raises(PeerError, match="a frame Refuse of 104 bytes"):
        encode(Refuse("x" * 100), 100)


def test_limits_must_fit_together() -> None:
    for wrong in (
        {"frame_bytes": 10},
        {"frame_bytes": 1 << 20, "waiting_bytes": 1 << 20},
        {"waiting_bytes": 1 << 33},
        {"ping_seconds": 10.0},
        {"deaf_seconds": 5.0},
    ):
        with pytest.raises(UsageError, match="do not fit together"):
            Limits(**wrong)
    Limits().check(8 << 20)
    with pytest.raises(UsageError, match="max_record_bytes"):
        Limits().check(64 << 20)


# -- the greeting ---------------------------------------------------------------------


def pair(
    caller: Identity, listener: Identity, expected: str = "listener"
) -> tuple[Handshake, Handshake]:
    return (
        Handshake(caller, NONCES[0], expected=expected),
        Handshake(listener, NONCES[1], expected=None),
    )


def greet(caller: Handshake, listener: Handshake) -> None:
    """Carry frames until nobody has anything to say."""
    for_listener, for_caller = caller.begin(), listener.begin()
    while for_listener or for_caller:
        for_caller += [a for frame in for_listener for a in listener.receive(frame)]
        for_listener = [a for frame in for_caller for a in caller.receive(frame)]
        for_caller = []


STORED = Secret(SECRET.value, "store")


def identity(worker: str, pipeline: str = "p", secret: Secret = SECRET) -> Identity:
    return Identity(pipeline, worker, secret)


@pytest.mark.parametrize("secret", [SECRET, STORED])
def test_two_that_fit_greet_each_other(secret: Secret) -> None:
    caller, listener = pair(identity("caller", secret=secret), identity("listener", secret=secret))
    greet(caller, listener)
    assert caller.done
    assert listener.done
    assert (caller.peer, listener.peer) == ("listener", "caller")


@pytest.mark.parametrize(
    ("caller", "listener", "reason"),
    [
        (identity("caller", "q"), identity("listener"), "pipeline 'q' and one of 'p'"),
        (
            identity("caller", secret=Secret(SECRET.value * 2, "given")),
            identity("listener"),
            "different shared secrets",
        ),
        (identity("caller", secret=STORED), identity("listener"), "different shared secrets"),
        (identity("caller"), identity("listener", secret=STORED), "different shared secrets"),
        (
            identity("caller"),
            identity("other"),
            "'other' listens at the address of worker 'listener'",
        ),
        (identity("listener"), identity("listener"), "both sides"),
    ],
)
def test_two_that_do_not_fit(caller: Identity, listener: Identity, reason: str) -> None:
    sides = pair(caller, listener)
    with pytest.raises(PeerError, match=reason):
        greet(*sides)
    assert not any(side.done for side in sides)


def test_workers_that_know_two_incarnations_of_the_server_refuse_each_other() -> None:
    caller = Handshake(identity("caller"), NONCES[0], expected="listener", incarnation="1")
    listener = Handshake(identity("listener"), NONCES[1], expected=None, incarnation="2")
    with pytest.raises(PeerError, match="server has restarted or failed over"):
        greet(caller, listener)
    assert not caller.done


def introductions() -> tuple[Handshake, Introduction, Handshake, Introduction]:
    """Two workers that have proved that they know the secret, and what they say next."""
    caller, listener = pair(identity("caller"), identity("listener"))
    (hello,) = caller.begin()
    (answer,) = listener.receive(hello)
    (proof,) = caller.receive(answer)
    proved, theirs = listener.receive(proof)
    caller.receive(proved)
    other = Handshake(identity("caller"), NONCES[0], expected="listener")
    for frame in (answer, proved):
        other.receive(frame)
    (mine,) = other.receive(theirs)
    assert isinstance(mine, Introduction)
    assert isinstance(theirs, Introduction)
    return caller, mine, listener, theirs


@pytest.mark.parametrize("change", [{"worker": "w"}, {"pipeline": "q"}, {"incarnation": "2"}])
def test_who_a_worker_is_is_part_of_what_is_proved(change: dict[str, str]) -> None:
    """Nobody between two workers makes them believe in another name or incarnation."""
    caller, mine, listener, theirs = introductions()
    for side, frame in ((listener, mine), (caller, theirs)):
        with pytest.raises(PeerError, match="was changed on its way"):
            side.receive(structs.replace(frame, **change))
        assert not side.done


def test_an_introduction_that_is_sent_back_is_found_out() -> None:
    caller, mine, listener, theirs = introductions()
    with pytest.raises(PeerError, match="was changed on its way"):
        caller.receive(mine)
    with pytest.raises(PeerError, match="was changed on its way"):
        listener.receive(theirs)


def test_nothing_is_told_before_proof() -> None:
    """Whatever is asked or claimed, by a caller or by a listener."""
    told: list[Frame | str] = []
    for secret in (SECRET, STORED):
        mine = Identity("the pipeline", "the worker", secret)
        for pipeline, worker in (("", ""), ("the pipeline", "the worker"), ("p", "w")):
            for expected in (None, "the other"):
                side = Handshake(mine, NONCES[0], expected=expected, incarnation="the server")
                told += side.begin()
                told += side.receive(Hello(frames.VERSION, pipeline, worker, NONCES[1]))
                with pytest.raises(PeerError) as refusal:
                    side.receive(Proof(b"0" * 32))
                told.append(str(refusal.value))
    hellos = {frame for frame in told if isinstance(frame, Hello)}
    assert hellos == {Hello(frames.VERSION, "", "", NONCES[0])}
    proofs = {frame for frame in told if isinstance(frame, Proof)}
    assert len({*told} - hellos - proofs) == 1, "one refusal, whoever is refused"
    assert not any("the worker" in said for said in told if isinstance(said, str))


def test_a_greeting_of_an_older_version_is_understood() -> None:
    """It has no incarnation in it."""
    old = frames.decode(msgspec.msgpack.encode([1, 3, "p", "old", NONCES[0]]))
    with pytest.raises(PeerError, match="version 3 of the protocol"):
        Handshake(identity("listener"), NONCES[1], expected=None, incarnation="2").receive(old)


def test_a_proof_that_was_overheard_is_of_no_use() -> None:
    caller, listener = pair(identity("caller"), identity("listener"))
    (hello,) = caller.begin()
    (answer,) = listener.receive(hello)
    (proof,) = caller.receive(answer)
    again = Handshake(identity("listener"), b"3" * 32, expected=None)
    again.receive(hello)
    with pytest.raises(PeerError, match="secret"):
        again.receive(proof)


def test_a_listener_that_sends_the_callers_proof_back_is_found_out() -> None:
    caller, _ = pair(identity("caller"), identity("listener"))
    (proof,) = caller.receive(Hello(frames.VERSION, "", "", NONCES[1]))
    with pytest.raises(PeerError, match="secret"):
        caller.receive(proof)


def test_the_listener_proves_nothing_to_who_has_not() -> None:
    _, listener = pair(identity("caller"), identity("listener"))
    answers = listener.receive(Hello(frames.VERSION, "", "", NONCES[0]))
    assert [type(answer) for answer in answers] == [Hello]
    with pytest.raises(PeerError):
        listener.receive(Proof(b"\0" * 32))
    assert not listener.done


@pytest.mark.parametrize("frame", [Welcome(), Proof(b""), frames.Ping(), frames.NotMine(1, 1, 1)])
def test_nobody_gets_in_without_a_greeting(frame: Frame) -> None:
    for side in pair(identity("caller"), identity("listener")):
        with pytest.raises(PeerError, match="where Hello is expected"):
            side.receive(frame)
        assert not side.done


def test_a_secret_that_can_be_guessed_is_refused_and_never_shown() -> None:
    with pytest.raises(UsageError, match="can be guessed"):
        Secret(b"hunter2", "given")
    assert "sixteen" not in repr(identity("w"))
