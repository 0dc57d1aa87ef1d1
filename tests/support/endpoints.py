"""Requests to HTTP endpoints, and their metrics."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from email.message import Message

from prometheus_client.parser import text_string_to_metric_families


def fetch(url: str, tls: ssl.SSLContext | None = None, **headers: str) -> tuple[int, str, Message]:
    """The status, body and headers of an answer."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=60, context=tls
        ) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Values by the name of the metric and the values of its labels, which are in order of their
    names."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
