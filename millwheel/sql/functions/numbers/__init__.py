"""Numbers."""

from millwheel.sql.functions.numbers import (  # noqa: F401
    bits,
    decimals,
    degrees,
    floats,
    integers,
    mathematics,
    number_texts,
    powers,
)
