"""The recipe for a schema registry, with bytes that Confluent's own serializers have made."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from examples.kafka_broker import KafkaBroker
from examples.schema_registry import Avro, JsonSchema, Protobuf, Registry
from millwheel.bundles import RecordsRefused
from millwheel.core.model import Record
from millwheel.errors import InputError
from millwheel.kafka import KafkaSink
from tests.kafka.bundles import Bundle
from tests.kafka.clusters import FakeSite, RealSite, Written
from tests.kafka.readers import end, opened, read


class Order(msgspec.Struct):
    number: int
    customer: str
    cents: int = 100


def avro(*fields: tuple[str, str]) -> str:
    """A schema of orders; cents have a default."""
    return json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [
                {"name": name, "type": type_, **({"default": 100} if name == "cents" else {})}
                for name, type_ in fields
            ],
        }
    )


NARROW = avro(("number", "int"), ("customer", "string"))
WIDE = avro(("number", "int"), ("customer", "string"), ("cents", "int"))

PROTO = """syntax = "proto3";
package shop;
message Order { int32 number = 1; string customer = 2; }
message Wrapper {
  message Inner0 { int32 number = 1; string customer = 2; }
  message Inner { int32 number = 1; string customer = 2; }
}
"""


def _message_type(name: str) -> descriptor_pb2.DescriptorProto:
    made = descriptor_pb2.DescriptorProto(name=name)
    made.field.add(name="number", number=1, type=5, label=1)
    made.field.add(name="customer", number=2, type=9, label=1)
    return made


def message_class(name: str) -> Any:
    """The class that protoc makes of a message in `PROTO`."""
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    file.message_type.add().CopyFrom(_message_type("Order"))
    wrapper = file.message_type.add()
    wrapper.name = "Wrapper"
    wrapper.nested_type.add().CopyFrom(_message_type("Inner0"))
    wrapper.nested_type.add().CopyFrom(_message_type("Inner"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


class Site:
    """A registry with two requests of the real one's protocol."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.refuses: list[int] = []
        """Codes of the next answers."""
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                id_ = int(self.path.rpartition("/")[2])
                self._answer(site.schemas.get(id_))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                same = [id_ for id_, known in site.schemas.items() if known == body]
                id_ = same[0] if same else 1000 + len(site.schemas)
                site.schemas[id_] = body
                self._answer({"id": id_})

            def _answer(self, body: Any) -> None:
                site.asked.append(self.path)
                code = site.refuses.pop(0) if site.refuses else (404 if body is None else 200)
                said = {"error_code": code, "message": "no"} if code != 200 else body
                self.send_response(code)
                self.end_headers()
                self.wfile.write(json.dumps(said).encode())

            def log_message(self, *args: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def registry(self) -> Registry:
        return Registry(f"http://127.0.0.1:{self.server.server_port}/")

    def add(self, id_: int, schema: str, kind: str) -> None:
        self.schemas[id_] = {"schema": schema, "schemaType": kind}


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.server.shutdown()
    made.server.server_close()


def protobuf(site: Site, name: str) -> Protobuf:
    made = message_class(name)
    return Protobuf(
        site.registry,
        made,
        PROTO,
        to_value=lambda message: Order(message.number, message.customer),
        to_message=lambda order: made(number=order.number, customer=order.customer),
    )


ORDER = Order(17, "ada")
IN_AVRO = b'\x00\x00\x00\x03\xe8"\x06ada'
IN_JSON = b'\x00\x00\x00\x03\xe8{"number":17,"customer":"ada"}'
IN_PROTOBUF = b"\x00\x00\x00\x03\xe8\x00\x08\x11\x12\x03ada"
IN_INNER = b"\x00\x00\x00\x03\xe8\x04\x02\x02\x08\x11\x12\x03ada"
"""What the serializers of confluent-kafka 2.12.2 write for it, under schema 1000."""


def record(value: bytes | None) -> Any:
    return Written(value)


async def test_what_others_have_written_is_read(site: Site) -> None:
    site.add(1000, NARROW, "AVRO")
    assert await Avro(site.registry, Order, WIDE).decode(record(IN_AVRO)) == ORDER
    site.add(1000, "{}", "JSON")
    assert await JsonSchema(site.registry, Order).decode(record(IN_JSON)) == ORDER
    site.add(1000, PROTO, "PROTOBUF")
    assert await protobuf(site, "shop.Order").decode(record(IN_PROTOBUF)) == ORDER
    assert await protobuf(site, "shop.Wrapper.Inner").decode(record(IN_INNER)) == ORDER


async def test_what_is_written_is_as_others_write_it(site: Site) -> None:
    class Narrow(msgspec.Struct):
        number: int
        customer: str

    narrow: Any = Narrow(17, "ada")
    assert await Avro(site.registry, Narrow, NARROW).encode_for("orders")(narrow) == IN_AVRO
    site.schemas.clear()
    assert await JsonSchema(site.registry, Narrow).encode_for("orders")(narrow) == IN_JSON
    site.schemas.clear()
    assert await protobuf(site, "shop.Order").encode_for("orders")(narrow) == IN_PROTOBUF
    assert await protobuf(site, "shop.Wrapper.Inner").encode_for("orders")(narrow) == IN_INNER
    assert set(site.asked) == {"/subjects/orders-value/versions"}


async def test_a_schema_is_asked_for_once(site: Site) -> None:
    site.add(1000, NARROW, "AVRO")
    orders = Avro(site.registry, Order, WIDE)
    for _ in range(3):
        await orders.decode(record(IN_AVRO))
    assert site.asked == ["/schemas/ids/1000"]


async def test_a_registry_that_is_away_is_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.schema_registry.RETRY_SECONDS", 0.01)
    site.add(1000, NARROW, "AVRO")
    site.refuses += [503, 500, 429]
    assert await Avro(site.registry, Order, WIDE).decode(record(IN_AVRO)) == ORDER
    nobody = Avro(Registry("http://127.0.0.1:1"), Order, WIDE)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(nobody.decode(record(IN_AVRO)), 0.2)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"17", "does not begin with a zero byte"),
        (b'{"number":17}', "does not begin with a zero byte"),
        (None, "does not begin with a zero byte"),
        (IN_AVRO.replace(b"\xe8", b"\xe9"), "the schema registry says"),
        (IN_AVRO.replace(b"\xe8", b"\xea"), "schema 1002 is JSON, not AVRO"),
        (IN_AVRO[:-2], ""),
    ],
)
async def test_what_cannot_be_read_is_the_records_fault(
    site: Site, value: bytes | None, reason: str
) -> None:
    """Of such records one is a bad row, and the next one is read."""
    site.add(1000, NARROW, "AVRO")
    site.add(1002, "{}", "JSON")
    fake = FakeSite()
    topic = await fake.make()
    await fake.write(topic, [Written(value), Written(IN_AVRO)])
    orders = Avro(site.registry, Order, WIDE)
    reader = await opened(fake, topic, decode=orders.decode, tombstones="deliver")
    bad, good = await read(reader, 2)
    assert isinstance(bad.error, InputError)
    assert reason in str(bad.error)
    assert good.value == ORDER
    await end(reader)


async def test_a_registry_that_refuses_to_answer_stops_the_source(site: Site) -> None:
    """No record is at fault, so none becomes a dead letter."""
    site.refuses.append(401)
    fake = FakeSite()
    topic = await fake.make()
    await fake.write(topic, [Written(IN_AVRO)])
    reader = await opened(fake, topic, decode=Avro(site.registry, Order, WIDE).decode)
    with pytest.raises(InputError, match="401"):
        await read(reader, 1)
    await end(reader)


async def test_another_message_type_of_the_same_schema_is_refused(site: Site) -> None:
    site.add(1000, PROTO, "PROTOBUF")
    with pytest.raises(ValueError, match=r"message \[0\], is not shop.Wrapper.Inner"):
        await protobuf(site, "shop.Wrapper.Inner").decode(record(IN_PROTOBUF))
    with pytest.raises(ValueError, match="ends before"):
        await protobuf(site, "shop.Order").decode(record(IN_INNER[:6]))


async def test_from_the_sink_to_the_source(broker: KafkaBroker, site: Site) -> None:
    """Over a real broker: what the sink writes, the source reads; a value without a place in the
    schema is refused."""
    real = RealSite(broker.bootstrap)
    await real.open()
    topic = await real.make()
    orders = Avro(site.registry, Order, WIDE)
    sink = KafkaSink(real.cluster, topic, encode=orders.encode_for(topic))
    bundle: Any = Bundle(1)
    wrong: Any = Order("seventeen", "eve")  # type: ignore[arg-type]
    with pytest.raises(RecordsRefused) as caught:
        await sink.deliver([Record("", value, 0, "s") for value in (ORDER, wrong)], bundle)
    assert list(caught.value.reasons) == [1]
    await sink.deliver([Record("", ORDER, 0, "s")], bundle)
    await sink.close()
    reader = await opened(real, topic, decode=orders.decode)
    assert [row.value for row in await read(reader, 1)] == [ORDER]
    await end(reader)
    await real.close()
