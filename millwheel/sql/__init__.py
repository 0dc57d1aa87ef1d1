"""Queries in Postgres' SQL, compiled to the computations that exist.

::

    text ─ parsing ─▶ syntax ─ resolving ─▶ typed tree ─ generating ─▶ Python functions
                                    ▲                                        │
                                 catalog                                  planning ─▶ the graph

* `millwheel.sql.parsing`: a text becomes `millwheel.sql.syntax`, a closed list of nodes. The
  rest is refused with its line and column.
* `millwheel.sql.resolving`: gives each node the type, operator and function that Postgres would
  choose, by Postgres' own rules over its catalog (`millwheel.sql.catalog`).
* `millwheel.sql.generating`: one Python expression for a typed tree.
* `millwheel.sql.functions`: Postgres' operators, functions and casts, in Python;
  `millwheel.sql.user_functions`: those of the user.
"""

from millwheel.sql.user_functions import function

__all__ = ["function"]
