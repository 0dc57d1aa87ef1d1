"""A Nexmark query in small steps, so that there is an order in which its workers can be killed."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module

from millwheel import Pipeline, Settings

VARIABLE = "CAMPAIGN_QUERY"


def pipeline() -> Pipeline:
    """As the environment says."""
    made: Pipeline = import_module(f"examples.nexmark.{os.environ[VARIABLE]}").pipeline()
    made.settings = replace(
        Settings(),
        bundle_records=100,
        chunk_records=50,
        max_unacked_records=250,
        placement_seconds=0.2,
        lease_seconds=1.0,
        fold_seconds=1.0,
        bucket_seconds=5.0,
        source_bucket_rows=4_000,
    )
    return made
