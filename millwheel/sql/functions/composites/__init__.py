"""Arrays and JSON."""

from millwheel.sql.functions.composites import (  # noqa: F401
    array_texts,
    json,
    json_casts,
    json_texts,
    lists,
)
