"""A broker that asks for a certificate: source and sink over TLS."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.kafka_broker import KafkaBroker
from millwheel.errors import InputError
from millwheel.kafka import KafkaCluster, KafkaSink, aio
from millwheel.kafka.aio import AioClient
from tests.kafka.bundles import deliver
from tests.kafka.clusters import RealSite, guarded_broker
from tests.kafka.readers import end, opened, read
from tests.support.certificates import Authority

Guarded = tuple[str, str, Path]
"""The addresses for everybody and for holders of a certificate, and the folder of the
certificates."""


@pytest.fixture(scope="module")
def guarded(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker with a certificate, which asks for one."""
    del broker  # it has shown that Kafka can be started here
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder, "authority")
    for name in ("broker", "anna"):
        chain, key = authority.certificate(name, "IP:127.0.0.1")
        (folder / f"{name}.both").write_text(key.read_text() + chain.read_text())
    of = "listener.name.guarded.ssl"
    made, address = guarded_broker(
        Path(tempfile.mkdtemp(prefix="millwheel-kafka-")),
        [
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,GUARDED:SSL",
            f"{of}.client.auth=required",
            f"{of}.keystore.type=PEM",
            f"{of}.keystore.location={folder / 'broker.both'}",
            f"{of}.truststore.type=PEM",
            f"{of}.truststore.location={folder / 'authority.pem'}",
        ],
    )
    yield made.start(), address, folder
    made.remove()


async def test_source_and_sink_with_a_certificate(guarded: Guarded) -> None:
    everybody, address, folder = guarded
    cluster = KafkaCluster(
        address,
        "SSL",
        ca_file=str(folder / "authority.pem"),
        cert_file=str(folder / "anna.pem"),
        key_file=str(folder / "anna.key"),
    )
    site = RealSite(everybody)
    await site.open()
    topic = await site.make()
    sink = KafkaSink(cluster, topic)
    await deliver(sink, [1, 2], 1)
    await sink.close()
    await site.close()
    site.cluster = cluster
    reader = await opened(site, topic)
    assert [row.value for row in await read(reader, 2)] == [1, 2]
    await end(reader)


async def test_who_has_none_or_trusts_another_authority_is_refused(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "PATIENCE_SECONDS", 1.0)
    _, address, folder = guarded
    Authority(tmp_path, "stranger")
    for refused in (
        KafkaCluster(address, "SSL", ca_file=str(folder / "authority.pem")),
        KafkaCluster(address, "SSL", ca_file=str(tmp_path / "stranger.pem")),
        KafkaCluster(address),
    ):
        client = AioClient(refused)
        with pytest.raises(InputError, match=r"security_protocol"):
            await client.topic("no-such-topic")
        await client.close()
