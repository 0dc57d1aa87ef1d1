"""A broker that asks for a certificate: source and sink over TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.errors import InputError
from millwheel.kafka import KafkaCluster, KafkaSink, aio
from millwheel.kafka.aio import AioClient
from tests.kafka.bundles import deliver
from tests.kafka.clusters import GuardedBroker, RealSite
from tests.kafka.readers import end, opened, read
from tests.support.certificates import Authority


async def test_source_and_sink_with_a_certificate(broker: GuardedBroker) -> None:
    folder = broker.folder
    cluster = KafkaCluster(
        broker.with_certificate,
        "SSL",
        ca_file=str(folder / "authority.pem"),
        cert_file=str(folder / "anna.pem"),
        key_file=str(folder / "anna.key"),
    )
    site = RealSite(broker.bootstrap)
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
    broker: GuardedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "PATIENCE_SECONDS", 1.0)
    address, folder = broker.with_certificate, broker.folder
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
