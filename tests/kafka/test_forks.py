"""Kafka on both sides of a fork: it sends nothing and moves no group, until its outputs are on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from msgspec import Struct

from examples.kafka_broker import KafkaBroker
from millwheel import Pipeline, Settings, Stream, Table
from millwheel.kafka import Kafka, KafkaCluster, KafkaSink
from millwheel.runtime.environment import Environment
from millwheel.runtime.ownership.own_outputs import as_run
from millwheel.services.run import Run
from millwheel.store.console.inspection import inspect
from millwheel.store.console.outputs import switch_outputs
from millwheel.store.copies.forks import fork
from millwheel.store.copies.replacing import restore
from millwheel.store.copies.savepoints import make_savepoint
from millwheel.store.port.deploy import CopyState
from tests.kafka.bundles import Bench, deliver
from tests.support.store_sites import Schema

SETTINGS = replace(Settings(), intervals=1)


class Kept(Struct):
    n: int


class Numbers:
    """A topic that a pipeline reads, and one that it writes."""

    def __init__(self, bootstrap: str, url: str = "", name: str = "forks") -> None:
        self.url = url
        self.cluster = KafkaCluster(bootstrap)
        self.sold = Bench(bootstrap, f"sold_{name}")
        self.asked = Bench(bootstrap, f"asked_{name}")

    def pipeline(self, name: str) -> Pipeline:
        numbers = Stream("numbers", int)
        made = Pipeline("wheel", settings=SETTINGS)
        source = Kafka(self.cluster, self.asked.topic, group="forks")
        made.inject(numbers, source)
        made.sink(numbers, Table("kept", Kept), row=Kept)
        made.sink(numbers, KafkaSink(self.cluster, self.sold.topic, id_prefix="forks"))
        return made.named(name)

    async def make(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        await admin.start()
        kept = {"retention.ms": "-1"}
        topics = [NewTopic(one.topic, 1, 1, topic_configs=kept) for one in (self.sold, self.asked)]
        await admin.create_topics(topics)
        await admin.close()

    async def ask(self, *numbers: int) -> None:
        await deliver(self.asked.sink(exactly_once=False), numbers, 1)

    async def run(self, name: str, rows: int) -> None:
        """Run a pipeline until it has so many rows in its table, and all is delivered."""
        stop = asyncio.Event()
        running = asyncio.create_task(Run(self.pipeline(name), self.url).run(stop))
        async with asyncio.timeout(60):
            while not self.is_done(name, rows):
                assert not running.done(), running.result()
                await asyncio.sleep(0.05)
        stop.set()
        await running

    def is_done(self, name: str, rows: int) -> bool:
        with inspect(self.url) as inspection:
            found = {one.name: one for one in inspection.status(name).computations}
        return len(found) == 3 and all(
            one.processed >= rows for one in found.values() if one.kind != "injector"
        )

    async def close(self) -> None:
        await self.sold.close()
        await self.asked.close()


@pytest.mark.newest
async def test_a_fork_sends_nothing_until_its_outputs_are_on(
    broker: KafkaBroker, schema: Schema
) -> None:
    site = Numbers(broker.bootstrap, schema.url)
    await site.make()
    await site.ask(1, 2, 3)
    await site.run("wheel", 3)
    assert await site.sold.values() == [b"1", b"2", b"3"]
    fork(site.url, "wheel", "wheel2")
    await site.ask(4, 5)
    await site.run("wheel2", 5)
    assert await site.sold.values() == [b"1", b"2", b"3"]
    await site.run("wheel", 5)
    assert await site.sold.values() == [b"1", b"2", b"3", b"4", b"5"]
    switch_outputs(site.url, "wheel2", on=True)
    await site.ask(6)
    await site.run("wheel2", 6)
    await site.run("wheel", 6)
    assert await site.sold.values() == [b"1", b"2", b"3", b"4", b"5", b"6", b"6"]
    await site.close()


@pytest.mark.newest
async def test_a_restored_pipeline_sends_again_and_goes_on(
    broker: KafkaBroker, schema: Schema
) -> None:
    """Also bundles of a scope that had none at the savepoint."""
    site = Numbers(broker.bootstrap, schema.url, "restored")
    await site.make()
    await site.ask(1)
    await site.run("wheel", 1)
    make_savepoint(site.url, "wheel", "one")
    await site.ask(2, 3)
    await site.run("wheel", 3)
    for again in (1, 2):
        found = restore(site.url, "wheel@one")
        assert [one.sink for one in found.delivered] == ["numbers_to_kafka"]
        await site.run("wheel", 3)
        assert sorted(await site.sold.values()) == sorted([b"1", *[b"2", b"3"] * (1 + again)])
    await site.ask(4)
    await site.run("wheel", 4)
    assert (await site.sold.values())[-1] == b"4"
    await site.close()


@pytest.mark.parametrize(
    ("copied", "name", "group"),
    [
        (CopyState(), "wheel", "forks"),
        (CopyState("wheel"), "wheel2", "forks.wheel2"),
        (CopyState("wheel@one"), "wheel", "forks"),
        (CopyState("wheel", withholds=True), "wheel2", None),
        (CopyState(), "wheel2", "forks.wheel2"),
    ],
)
async def test_the_group_of_a_source(copied: CopyState, name: str, group: str | None) -> None:
    """Tools see the lag of the origin under the group of the code."""
    site = Numbers("nowhere:9092")
    graph = site.pipeline(name).graph()
    env: Any = Environment.__new__(Environment)
    env.graph, env.copied = graph, copied
    (injector,) = [node for node in graph.nodes if node.kind == "injector"]
    injection = as_run(env, injector).injection
    assert injection is not None
    assert getattr(injection.source, "group", "") == group
    assert injector.describe() == as_run(env, injector).describe()
