"""How to connect to a Kafka cluster. Names and passwords come from the environment and are stored
nowhere."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from millwheel.errors import UsageError

USER, PASSWORD = "MILLWHEEL_KAFKA_USER", "MILLWHEEL_KAFKA_PASSWORD"
"""Environment variables with the name and the password for SASL."""

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"]


@dataclass(frozen=True)
class KafkaCluster:
    """The addresses of some brokers of a cluster, and how to speak to them.

    ```python
    CLUSTER = KafkaCluster(
        "broker1:9093,broker2:9093", security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512"
    )
    ```

    With SASL, a worker reads name and password from ``MILLWHEEL_KAFKA_USER`` and
    ``MILLWHEEL_KAFKA_PASSWORD`` when it connects; a second cluster may have other variables.

    Attributes:
        bootstrap: ``HOST:PORT``, several separated by commas.
        ca_file: certificates that brokers must have a certificate of; by default the system's.
        cert_file, key_file: the certificate and the key of the client, if brokers ask for one.
        user, password: names of the environment variables.
        token_provider: for OAUTHBEARER: returns an `aiokafka.abc.AbstractTokenProvider`.

    Raises:
        UsageError: the options do not fit together.
    """

    bootstrap: str
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: Mechanism = "PLAIN"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    user: str = USER
    password: str = PASSWORD
    token_provider: Callable[[], Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for address in self.bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdecimal():
                raise UsageError(
                    f"KafkaCluster: {address!r} is not the address of a broker; give HOST:PORT, "
                    "several separated by commas"
                )
        if self.security_protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise UsageError(
                f"KafkaCluster: there is no security_protocol {self.security_protocol!r}; it is "
                "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
            )
        if not self.has_tls and (self.ca_file or self.cert_file or self.key_file):
            raise UsageError(
                f"KafkaCluster: certificates have no effect with {self.security_protocol}; give "
                "security_protocol SSL or SASL_SSL"
            )
        if (self.sasl_mechanism == "OAUTHBEARER") != (self.token_provider is not None):
            raise UsageError("KafkaCluster: OAUTHBEARER and token_provider= need each other")

    @property
    def has_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    def options(self) -> dict[str, Any]:
        """The options of an aiokafka client.

        Raises:
            UsageError: a variable is not set, or a certificate cannot be read.
        """
        found: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": self.security_protocol,
            "client_id": "millwheel",
        }
        if self.has_tls:
            found["ssl_context"] = self._tls()
        if self.has_sasl:
            found["sasl_mechanism"] = self.sasl_mechanism
            if self.token_provider is not None:
                found["sasl_oauth_token_provider"] = self.token_provider()
            elif self.sasl_mechanism != "GSSAPI":
                found["sasl_plain_username"] = self._secret(self.user)
                found["sasl_plain_password"] = self._secret(self.password)
        return found

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:
            raise UsageError(f"KafkaCluster: a certificate cannot be read: {error}") from error
        return context

    def _secret(self, variable: str) -> str:
        try:
            return os.environ[variable]
        except KeyError:
            raise UsageError(
                f"KafkaCluster: {self.security_protocol} with {self.sasl_mechanism} needs the "
                f"environment variable {variable}, which is not set"
            ) from None


def check_topic(cluster: object, topic: str) -> str:
    """Check the first two arguments of a source or a sink; gives the topic's name for messages.

    Raises:
        UsageError: one of them is wrong.
    """
    subject = f"Kafka topic {topic!r}"
    if not isinstance(cluster, KafkaCluster):
        raise UsageError(f'{subject}: give KafkaCluster("HOST:PORT") first, not {cluster!r:.80}')
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic):
        raise UsageError(
            f"{subject}: a topic's name has up to 249 letters, digits, '.', '_' and '-'"
        )
    return subject
