"""Kafka as a source. Needs ``pip install 'millwheel[kafka]'``.

::

    CLUSTER = KafkaCluster("broker1:9092,broker2:9092")
    pipeline.inject(ORDERS, Kafka(CLUSTER, "orders"), timestamp=lambda order: order.at)

Read these modules in this order: `cluster` (how to connect), `port` (the calls that the rest needs of a
client), `aio` (these calls by aiokafka), `names`, `decoding`, `reader` (one partition), `discovery` (the partitions of a
topic), `source`.
"""

from millwheel.errors import UsageError

try:
    import aiokafka as _  # noqa: F401
except ModuleNotFoundError as error:
    raise UsageError("Kafka needs the package aiokafka: pip install 'millwheel[kafka]'") from error

from millwheel.kafka.cluster import KafkaCluster
from millwheel.kafka.port import KafkaRecord
from millwheel.kafka.source import Kafka

__all__ = ["Kafka", "KafkaCluster", "KafkaRecord"]
