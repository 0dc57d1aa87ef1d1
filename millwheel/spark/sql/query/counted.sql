SELECT v ->> 0, v ->> 1, sum((v ->> 2)::numeric)::bigint
FROM (SELECT s.value::jsonb AS v FROM {staging} AS s WHERE s.{attempt} = ANY(%(staged)s::uuid[]) AND s.stream = 'counter') AS s
GROUP BY 1, 2
