-- Each row of either side with its counterpart on the other one, and its relation to it.
SELECT
    {part} AS part, a.is_there AS in_a, b.is_there AS in_b, {time} AS time, {shown},
    CASE
        WHEN {left_out} THEN 'left out'
        WHEN b.is_there IS NULL THEN 'only in a'
        WHEN a.is_there IS NULL THEN 'only in b'
        WHEN {differs} THEN 'differs'
        ELSE 'equal'
    END AS kind
FROM ({a}) AS a
FULL JOIN ({b}) AS b ON {on}
