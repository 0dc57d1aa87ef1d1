"""Kafka as a source and as a sink. Needs the extra ``kafka``.

Read in this order: `cluster` (how to connect), `port` (the calls needed of a client), `failures`,
`fetcher`, `writing` and `aio` (these calls by aiokafka); the source: `names`, `decoding`, `reader`,
`discovery`, `source`; the sink: `messages`, `limits`, `positions` (the rules of exactly once),
`sink`.
"""

from millwheel.core.distribution import install
from millwheel.errors import UsageError

try:
    import aiokafka as _  # noqa: F401
except ModuleNotFoundError as error:
    raise UsageError(f"Kafka needs the package aiokafka: {install('kafka')}") from error

from millwheel.kafka.cluster import KafkaCluster
from millwheel.kafka.port import KafkaRecord
from millwheel.kafka.sink import KafkaSink
from millwheel.kafka.topic_source import Kafka

__all__ = ["Kafka", "KafkaCluster", "KafkaRecord", "KafkaSink"]
