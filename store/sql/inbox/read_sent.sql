-- Records that an injector's interval has taken, from a number on.
SELECT t.number, t.value, t.ts FROM (
    SELECT t.*, sum(length(t.value)) OVER (ORDER BY t.number) - length(t.value) AS before
    FROM (
        SELECT t.number, t.value, t.ts FROM {taken_record} AS t
        WHERE t.interval_id = %(interval_id)s AND t.number >= %(first)s
        ORDER BY t.number
        LIMIT %(limit)s
    ) AS t
) AS t
WHERE t.before < %(characters)s
ORDER BY t.number
