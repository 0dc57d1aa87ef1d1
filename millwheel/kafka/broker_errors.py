"""Errors of aiokafka: those that pass, and advice for the user about the others."""

from __future__ import annotations

from aiokafka import errors as kafka_errors

from millwheel.errors import OutputError

BACKOFF_SECONDS = 0.25
"""Time until a call is repeated that may succeed a moment later."""

PASSING = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.NodeNotReadyError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.StaleMetadata,
    # aiokafka's mistake: the answer has an error for a partition, and none for all
    kafka_errors.NoError,
)

OF_RIGHTS = (
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.GroupAuthorizationFailedError,
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.TransactionalIdAuthorizationFailed,
)


def lacks_rights(error: BaseException | None) -> bool:
    """Whether the user lacks a right. aiokafka wraps errors of its tasks in others."""
    while error is not None:
        if isinstance(error, OF_RIGHTS):
            return True
        error = error.__cause__ or error.__context__
    return False


def passes(error: kafka_errors.KafkaError) -> bool:
    return isinstance(error, PASSING) or bool(getattr(error, "retriable", False))


def advice(error: BaseException) -> str:
    if not lacks_rights(error):
        return ""
    return (
        ". Give the user the rights to describe and read the topic, or for a sink those in "
        "docs/howto/connect/kafka-out.md, and start again"
    )


def no_right(what: str, error: BaseException) -> OutputError:
    """The error of a user without the right to write a topic or an id."""
    return OutputError(
        f"Kafka: {what} cannot be written: {error!r}. Give the user the rights to read and write "
        "the topic, to write and describe its transactional ids, and to read its groups "
        "(docs/howto/connect/kafka-out.md), and start again"
    )
