"""The greeting of two workers, which proves that both belong to the pipeline; plain data: no bytes,
no time.

::

    caller                                       listener
      Hello(version, nonce)             ->       check the version; keep the nonce
      the same                          <-       Hello(version, nonce)
      Proof(digest of both Hellos)      ->       check the digest
      check the digest                  <-       Proof(digest of both Hellos)
      check it; the worker called?      <-       Introduction(pipeline, worker, incarnation, digest)
      Introduction(...)                 ->       check it
                                        <-       Welcome()                      up
      up

The secret is an operator's, given to all workers, or the store's (decision 41).

A side that finds a mismatch sends ``Refuse(reason)`` and closes the connection. Each digest
includes the role of its sender, so that neither side can send the other's back, and both nonces, so
that it is useless for another connection.

Before a peer has proved that it knows the secret, it learns only the version of the protocol and a
random number. So a refusal does not name the secret; each side's log names the origin of its own.

A man in the middle can change later frames: TLS prevents that (`millwheel.services.tcp`). A short
secret can be guessed from an intercepted proof, so a given secret needs 16 random bytes or more;
the store's has 32.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from millwheel.errors import PeerError, UsageError
from millwheel.runtime.network.frames import (
    VERSION,
    Frame,
    Hello,
    Introduction,
    Proof,
    Welcome,
    named,
)

Role = Literal["caller", "listener"]

SECRET_BYTES = 16

Origin = Literal["given", "store"]

ORIGINS: dict[str, str] = {
    "given": "the secret from --secret-file or MILLWHEEL_SECRET",
    "store": "the secret in the store",
}

STEPS: dict[Role, dict[str, tuple[type[Frame], str]]] = {
    "caller": {
        "hello": (Hello, "proof"),
        "proof": (Proof, "introduction"),
        "introduction": (Introduction, "welcome"),
        "welcome": (Welcome, "done"),
    },
    "listener": {
        "hello": (Hello, "proof"),
        "proof": (Proof, "introduction"),
        "introduction": (Introduction, "done"),
    },
}
"""The expected frame and the next state, for each role and state."""


@dataclass(frozen=True)
class Secret:
    value: bytes = field(repr=False)
    origin: Origin

    def __post_init__(self) -> None:
        if len(self.value) < SECRET_BYTES:
            raise UsageError(
                f"the workers' shared secret has {len(self.value)} bytes; a secret of fewer than "
                f"{SECRET_BYTES} can be guessed. Make one with: python -c 'import secrets; "
                "print(secrets.token_hex(16))'"
            )


@dataclass(frozen=True)
class Identity:
    pipeline: str
    worker: str
    secret: Secret


class Handshake:
    """One side of the greeting of one connection.

    Args:
        nonce: random bytes for this connection only.
        expected: the worker that is called; None if this side is the listener.
    """

    def __init__(
        self, identity: Identity, nonce: bytes, *, expected: str | None, incarnation: str = ""
    ) -> None:
        self._identity = identity
        self._expected = expected
        self.role: Role = "listener" if expected is None else "caller"
        self._state = "hello"
        self._incarnation = incarnation
        self._mine = self._theirs = Hello(VERSION, "", "", nonce)
        self.peer = ""

    @property
    def done(self) -> bool:
        return self._state == "done"

    def begin(self) -> list[Frame]:
        return [self._mine] if self.role == "caller" else []

    def receive(self, frame: Frame) -> list[Frame]:
        """`PeerError` if the two workers do not match; its message is for both sides."""
        wanted, after = STEPS[self.role][self._state]
        if not isinstance(frame, wanted):
            raise PeerError(f"a frame {named(frame)} arrived where {wanted.__name__} is expected")
        answers: list[Frame] = []
        is_caller = self.role == "caller"
        match frame:
            case Hello():
                self._check_version(frame)
                self._theirs = frame
                answers = [self._proof(self.role)] if is_caller else [self._mine]
            case Proof():
                self._verify(frame)
                answers = [] if is_caller else [self._proof(self.role), self._introduction()]
            case Introduction():
                self._check(frame)
                self.peer = frame.worker
                answers = [self._introduction() if is_caller else Welcome()]
        self._state = after
        return answers

    def _check_version(self, hello: Hello) -> None:
        if hello.version != VERSION:
            raise PeerError(
                f"a worker with version {hello.version} of the protocol connected to one with "
                f"version {VERSION}; install the same version of millwheel everywhere"
            )

    def _verify(self, proof: Proof) -> None:
        if not hmac.compare_digest(proof.digest, self._proof(self._other).digest):
            raise PeerError(
                "the two workers have different shared secrets: give the same one to all workers "
                "of the pipeline, or to none (the log of each names where its own is from); or "
                "they are of different pipelines"
            )

    def _check(self, theirs: Introduction) -> None:
        mine = self._identity
        digest = self._digest(
            "introduction", self._other, theirs.pipeline, theirs.worker, theirs.incarnation
        )
        if not hmac.compare_digest(theirs.digest, digest):
            raise PeerError("an introduction was changed on its way")
        if theirs.pipeline != mine.pipeline:
            raise PeerError(
                f"a worker of the pipeline {mine.pipeline!r} and one of {theirs.pipeline!r} do not "
                "belong together"
            )
        if theirs.worker == mine.worker:
            raise PeerError(f"both sides call themselves worker {theirs.worker!r}")
        if self._expected is not None and theirs.worker != self._expected:
            raise PeerError(
                f"worker {theirs.worker!r} listens at the address of worker {self._expected!r}"
            )
        if theirs.incarnation != self._incarnation:
            raise PeerError(
                "the database server has restarted or failed over, and one of the two workers has "
                "not noticed it yet; that worker starts over as soon as it does"
            )

    @property
    def _other(self) -> Role:
        return "caller" if self.role == "listener" else "listener"

    def _proof(self, role: Role) -> Proof:
        return Proof(self._digest("proof", role))

    def _introduction(self) -> Introduction:
        mine = self._identity
        content = mine.pipeline, mine.worker, self._incarnation
        return Introduction(*content, self._digest("introduction", self.role, *content))

    def _digest(self, *content: str) -> bytes:
        """An HMAC over some content and both `Hello` frames."""
        caller, listener = self._mine, self._theirs
        if self.role == "listener":
            caller, listener = listener, caller
        kind = (
            self._identity.secret.origin
        )  # one of the two is configured wrongly, even if the values agree
        text = msgspec.msgpack.encode((kind, content, caller, listener))
        return hmac.digest(self._identity.secret.value, text, "sha256")
