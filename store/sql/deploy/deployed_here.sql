-- Whether the first deploy of the pipeline was in this incarnation of the server; NULL: not known.
SELECT g.incarnation = ({this_incarnation})
FROM {generation} AS g
ORDER BY g.number
LIMIT 1
