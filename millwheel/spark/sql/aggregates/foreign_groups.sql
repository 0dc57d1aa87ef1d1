-- Groups of staged rows that are not among the changed groups. The parameters have no names: the groups' follow.
SELECT DISTINCT {names} FROM {staging} AS staged
WHERE {attempt} = ANY(%s::uuid[]) AND NOT EXISTS (SELECT FROM {groups} WHERE {matches})
