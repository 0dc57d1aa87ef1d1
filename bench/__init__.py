"""Measurements. ``make bench`` runs them; nothing here decides a test."""

import logging

import structlog


def quiet() -> None:
    """Let workers tell of what is wrong alone: figures are read between the lines."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
