SELECT {values}, seq
FROM (
    SELECT value::jsonb AS v, seq FROM {staging}
    WHERE {attempt} = ANY(%(staged)s::uuid[]) AND stream = 'table'
) AS s
WHERE v ->> 0 = %(table)s
