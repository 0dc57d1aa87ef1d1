-- Whether the pipeline was deployed first in this incarnation of the server.
SELECT coalesce(
    (SELECT i.began_at FROM {incarnation} AS i) <= (SELECT min(g.began_at) FROM {generation} AS g), false
)
