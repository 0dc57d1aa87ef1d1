"""Benchmarks, run by ``make bench``. No test depends on their figures."""

import logging

import structlog


def quiet() -> None:
    """Log only warnings and errors, so that the figures stay readable."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
