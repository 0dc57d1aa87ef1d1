"""The precedences of Postgres' grammar."""

from __future__ import annotations

(OR, AND, NOT, IS, COMPARE, LIKE, ESCAPE, OTHER, ADD, MULTIPLY, POWER, AT, COLLATE, SIGN, SUBSCRIPT,
 CAST) = range(1, 17)  # fmt: skip
"""Precedences; a higher one binds tighter."""
