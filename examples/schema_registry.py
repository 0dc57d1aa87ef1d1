"""Values in Confluent's wire format, with schemas in a registry: Avro, JSON Schema and
Protobuf.

A value begins with a zero byte and the id of its writer's schema (4 bytes); a Protobuf value then
names its message type within that schema. `Avro`, `JsonSchema` and `Protobuf` have the `decode` and
`encode` of a stream's type::

    registry = Registry("http://registry:8081")
    orders = Avro(registry, Order, ORDER_SCHEMA)
    pipeline.inject(ORDERS, Kafka(CLUSTER, "orders", decode=orders.decode))
    alerts = Avro(registry, Alert, ALERT_SCHEMA)
    pipeline.sink(ALERTS, KafkaSink(CLUSTER, "alerts", encode=alerts.encode_for("alerts")))

* While the registry is away, reading and writing wait; no record is at fault.
* A value without the format's first byte, of an unknown schema, or that does not fit the type is a
  bad record: it stops the pipeline, or becomes a dead letter (``on_error="dead_letter"``).
* A schema is asked for once: ids never get another meaning.
* Name and password come from ``SCHEMA_REGISTRY_USER`` and ``SCHEMA_REGISTRY_PASSWORD``.

Avro needs ``pip install fastavro``, Protobuf ``pip install protobuf``. References between schemas
are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import struct
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

import msgspec
import structlog

from millwheel.errors import InputError
from millwheel.kafka import KafkaRecord

Kind = Literal["AVRO", "JSON", "PROTOBUF"]

RETRY_SECONDS = 1.0
TIMEOUT_SECONDS = 10.0
_HEAD = struct.Struct(">bI")

logger = structlog.get_logger("schema_registry")


class Schema(msgspec.Struct):
    """A schema as the registry answers it."""

    schema: str
    schema_type: str = msgspec.field(name="schemaType", default="AVRO")
    references: list[Any] = []


class _Registered(msgspec.Struct):
    id: int


class Registry:
    """A schema registry.

    Args:
        url: its address.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[tuple[str, str], int] = {}

    async def schema(self, id_: int, kind: Kind) -> Schema:
        """The schema with an id.

        Raises:
            ValueError: there is none, or it is of another kind, or refers to others.
            InputError: the registry refuses to answer.
        """
        found = self._schemas.get(id_)
        if found is None:
            answer = await self._ask(f"/schemas/ids/{id_}")
            found = self._schemas[id_] = msgspec.json.decode(answer, type=Schema)
        if found.schema_type != kind:
            raise ValueError(f"schema {id_} is {found.schema_type}, not {kind}")
        if found.references:
            raise ValueError(f"schema {id_} refers to other schemas, which are not followed")
        return found

    async def register(self, topic: str, schema: str, kind: Kind) -> int:
        """The id of the schema of a topic's values; the registry checks whether it is compatible.

        Raises:
            ValueError: it is not.
            InputError: the registry refuses to answer.
        """
        found = self._ids.get((topic, schema))
        if found is None:
            subject = urllib.parse.quote(f"{topic}-value", safe="")
            body = json.dumps({"schema": schema, "schemaType": kind}).encode()
            answer = await self._ask(f"/subjects/{subject}/versions", body)
            found = msgspec.json.decode(answer, type=_Registered).id
            self._ids[topic, schema] = found
        return found

    async def _ask(self, path: str, body: bytes | None = None) -> bytes:
        """Ask until there is an answer.

        Raises:
            ValueError: the registry has no such schema, or does not take it.
            InputError: it refuses to answer.
        """
        warned = False
        while True:
            try:
                return await asyncio.to_thread(self._request, path, body)
            except urllib.error.HTTPError as error:
                said = error.read().decode(errors="replace")[:500]
                if error.code in (404, 409, 422):
                    raise ValueError(f"the schema registry says: {said}") from error
                if error.code < 500 and error.code != 429:
                    raise InputError(f"{self._url}{path}: {error.code} {said}") from error
                problem: Exception = error
            except OSError as error:
                problem = error
            if not warned:
                logger.warning("no_answer", registry=self._url, reason=repr(problem))
                warned = True
            await asyncio.sleep(RETRY_SECONDS)

    def _request(self, path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(self._url + path, body)  # noqa: S310 - the user gives it
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json")
        request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        if user := os.environ.get("SCHEMA_REGISTRY_USER"):
            both = f"{user}:{os.environ.get('SCHEMA_REGISTRY_PASSWORD', '')}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(both).decode()}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
            return bytes(answer.read())


def _head(value: bytes | None) -> tuple[int, bytes]:
    """The schema's id, and the bytes behind it.

    Raises:
        ValueError: the value is not in this format.
    """
    if value is None or len(value) < _HEAD.size or value[0]:
        raise ValueError("the value does not begin with a zero byte and the id of a schema")
    return _HEAD.unpack_from(value)[1], value[_HEAD.size :]


class _Format:
    """A stream's type in one of the formats."""

    kind: Kind

    def __init__(self, registry: Registry, schema: str) -> None:
        self._registry = registry
        self._schema = schema

    async def decode(self, record: KafkaRecord) -> Any:
        """The value of a record.

        Raises:
            ValueError: it cannot be read.
            InputError: the registry refuses to answer.
        """
        id_, body = _head(record.value)
        return self._read(body, id_, await self._registry.schema(id_, self.kind))

    def encode_for(self, topic: str) -> Callable[[Any], Awaitable[bytes]]:
        """The function that encodes values for a topic."""

        async def encode(value: Any) -> bytes:
            id_ = await self._registry.register(topic, self._schema, self.kind)
            return _HEAD.pack(0, id_) + self._written(value)

        return encode

    def _read(self, body: bytes, id_: int, schema: Schema) -> Any:
        raise NotImplementedError

    def _written(self, value: Any) -> bytes:
        raise NotImplementedError


class Avro(_Format):
    """Avro.

    Args:
        value_type: the stream's type.
        schema: the schema for it, as JSON: of values that are written, and into which read values
            are resolved, whatever older or newer schema their writer had.
    """

    kind = "AVRO"

    def __init__(self, registry: Registry, value_type: Any, schema: str) -> None:
        import fastavro

        super().__init__(registry, schema)
        self._avro = fastavro
        self._type = value_type
        self._own = fastavro.parse_schema(json.loads(schema))
        self._writers: dict[int, Any] = {}

    def _read(self, body: bytes, id_: int, schema: Schema) -> Any:
        writer = self._writers.get(id_)
        if writer is None:
            writer = self._writers[id_] = self._avro.parse_schema(json.loads(schema.schema))
        found = self._avro.schemaless_reader(io.BytesIO(body), writer, self._own)
        return msgspec.convert(found, self._type)

    def _written(self, value: Any) -> bytes:
        out = io.BytesIO()
        self._avro.schemaless_writer(out, self._own, msgspec.to_builtins(value))
        return out.getvalue()


class JsonSchema(_Format):
    """JSON with a JSON Schema. Values are checked by the stream's type, which has made the schema.

    Args:
        value_type: the stream's type.
        schema: by default that of the type.
    """

    kind = "JSON"

    def __init__(self, registry: Registry, value_type: Any, schema: str | None = None) -> None:
        super().__init__(registry, schema or json.dumps(msgspec.json.schema(value_type)))
        self._decoder = msgspec.json.Decoder(value_type)

    def _read(self, body: bytes, id_: int, schema: Schema) -> Any:
        return self._decoder.decode(body)

    def _written(self, value: Any) -> bytes:
        return msgspec.json.encode(value)


class Protobuf(_Format):
    """Protobuf.

    Args:
        message: the class that ``protoc`` has made.
        schema: the text of its .proto file.
        to_value: returns a value of the stream for a message.
        to_message: returns a message for a value.
    """

    kind = "PROTOBUF"

    def __init__(
        self,
        registry: Registry,
        message: Any,
        schema: str,
        *,
        to_value: Callable[[Any], Any],
        to_message: Callable[[Any], Any],
    ) -> None:
        super().__init__(registry, schema)
        self._message = message
        self._to_value = to_value
        self._to_message = to_message
        self._path = _path(message.DESCRIPTOR)

    def _read(self, body: bytes, id_: int, schema: Schema) -> Any:
        numbers = _varints(body)
        count, at = next(numbers)
        path = [0] if count == 0 else []
        for _ in range(count):
            number, at = next(numbers)
            path.append(number)
        if path != self._path:
            name = self._message.DESCRIPTOR.full_name
            raise ValueError(f"schema {id_}, message {path}, is not {name}, message {self._path}")
        message = self._message()
        message.ParseFromString(body[at:])
        return self._to_value(message)

    def _written(self, value: Any) -> bytes:
        path = self._path
        head = b"\x00" if path == [0] else b"".join(map(_varint, (len(path), *path)))
        return head + bytes(self._to_message(value).SerializeToString())


def _path(descriptor: Any) -> list[int]:
    """The places of a message type and the types around it, in their file."""
    outer = descriptor.containing_type
    if outer is None:
        return [list(descriptor.file.message_types_by_name).index(descriptor.name)]
    return [*_path(outer), [one.name for one in outer.nested_types].index(descriptor.name)]


def _varint(number: int) -> bytes:
    """A number as Protobuf's sint32, for numbers from 0."""
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _varints(body: bytes) -> Iterator[tuple[int, int]]:
    """The numbers at the beginning, each with the place behind it."""
    number = shift = 0
    for place, byte in enumerate(body):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number >> 1, place + 1
            number = shift = 0
    raise ValueError("the value ends before its message")
