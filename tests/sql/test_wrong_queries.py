"""A wrong query is refused with its line and column, what is wrong, and what to do."""

from __future__ import annotations

import pytest

from millwheel.errors import SqlError
from tests.sql.answers import pipeline_of

I = "INSERT INTO r SELECT "  # noqa: E741
P = " FROM payments"
T = " FROM TUMBLE(payments, at, INTERVAL '1 minute') "

J = I + "p.cents FROM payments p JOIN orders o "
F = I
W = T + "GROUP BY window_start"

KEPT = I + "account, count(*) AS n" + P + " GROUP BY account RETAIN UNBOUNDED"

WRONG = [
    # texts, names, comments
    (I + "'tea" + P, "'tea", "a ' has no partner. Close it with '"),
    (I + 'account AS "who' + P, '"who', 'a " has no partner'),
    (I + 'account AS ""' + P, '""', "a name in quotes is empty"),
    (I + "cents /* price" + P, "/*", "a comment does not end"),
    (I + "$$tea" + P, "$$", "does not end"),
    (I + "12abc" + P, "12abc", "is no number"),
    (I + "cents + $1 AS x" + P, "$1", "Parameters"),
    (I + "cents \\ 2" + P, "\\", "is not understood"),
    # the shape of a statement
    ("SELECT cents" + P, "SELECT", "does not say where its rows go"),
    ("UPDATE payments SET cents = 1", "UPDATE", "INSERT INTO ... SELECT is missing here"),
    ("INSERT payments", "payments", "INTO is missing here"),
    ("INSERT INTO SELECT cents" + P, "SELECT", "is a word of SQL"),
    ("INSERT INTO r VALUES (1)", "VALUES", "SELECT is missing here"),
    ("INSERT INTO r (a, b) SELECT cents" + P, "INSERT", "INSERT has 2 columns, and the query 1"),
    (I + "cents" + P + " cents note fee", "note", "goes on with something unknown"),
    (I + "cents FROM", None, "a stream after FROM is missing here"),
    (I + "FROM payments", "FROM", "an expression is missing here"),
    (I + "cents, FROM payments", "FROM", "an expression is missing here"),
    (I + "cents" + P + " WHERE", None, "an expression is missing here"),
    (I + "cents" + P + " ORDER BY cents", "ORDER", "cannot be sorted"),
    (I + "cents" + P + " LIMIT 3", "LIMIT", "A stream has no end"),
    (I + "cents" + P + " OFFSET 3", "OFFSET", "A stream has no end"),
    (I + "cents" + P + " UNION SELECT fee" + P, "SELECT cents", "Write UNION ALL"),
    (I + "cents" + P + " EXCEPT SELECT fee" + P, "EXCEPT", "Use a join"),
    ("INSERT INTO r WITH x AS (SELECT 1) SELECT 2", "SELECT 2", "a query reads a stream"),
    ("INSERT INTO r WITH RECURSIVE x AS (SELECT 1)", "RECURSIVE", "is not available"),
    ("INSERT INTO r WITH x AS (SELECT 1), x AS (", "x AS (\0", "specified more than once"),
    (I + "cents FROM public.payments", ".payments", "streams have no schema"),
    (I + "cents FROM payments, payments", "payments\0", "specified more than once"),
    (I + "cents FROM payments NATURAL JOIN payments", "NATURAL", "Write the columns in ON"),
    (I + "p.cents FROM payments p JOIN payments AS q ON true", "JOIN", "an equality"),
    (I + "DISTINCT cents" + P, "SELECT", "would be kept for ever"),
    (I + "cents" + P + " GROUP BY ROLLUP (cents)", "ROLLUP", "a query for each grouping"),
    # names
    (I + "cent" + P, "cent", 'column "cent" does not exist. Did you mean cents?'),
    (I + "zzz" + P, "zzz", "The columns of payments are account, at, cents"),
    (I + "q.cents" + P, "q.cents", 'missing FROM-clause entry for table "q"'),
    (I + "payments.cents FROM payments AS p", "payments.cents", "The stream is called p here"),
    (I + "cents FROM paymens", "paymens", "The streams are: payments"),
    (I + "cents, cents" + P, "cents" + P, "is there twice"),
    (I + "cents + 1" + P, "cents + 1", "this column has no name. Add one"),
    (I + 'cents AS "a b"' + P, "cents", "cannot name a column"),
    (I + "window_start" + P, "window_start", "It exists over TUMBLE"),
    (I + "a.b.c" + P, ".c", "names have one table at most"),
    (I + "q.*" + P, "q.*", 'no stream called "q"'),
    # operators, functions, types
    (I + "cents + note AS x" + P, "cents + note", "operator does not exist: bigint + text"),
    (I + "cents @@@ 1 AS x" + P, "cents @@@", "Postgres has no operator @@@"),
    (I + "'1' + '2' AS x" + P, "'1' +", "operator is not unique"),
    (I + "cents = 'tea' AS x" + P, "'tea'", 'invalid input syntax for type bigint: "tea"'),
    (I + "cents < fee < 3 AS x" + P, "< 3", "comparisons do not follow each other"),
    (I + "nosuch(cents)" + P, "nosuch", "function nosuch(bigint) does not exist"),
    (I + "abss(cents)" + P, "abss", "Did you mean abs?"),
    (I + "abs(note)" + P, "abs", "No function of that name takes arguments of these types"),
    (I + "abs(cents" + P, "FROM", "')' is missing here, to end the arguments of abs"),
    (I + "now()" + P, "now", "depends on when the query runs"),
    (I + "current_date" + P, "current_date", "use a time of the record"),
    (I + "random()" + P, "random", "gives another result each time"),
    (I + "generate_series(1, 2)" + P, "generate_series", "returns several rows"),
    (I + "cents::nosuch" + P, "nosuch", 'type "nosuch" is not available'),
    (I + "cents::integr" + P, "integr", "Did you mean integer?"),
    (I + "paid::date" + P, "paid", "cannot cast type boolean to date"),
    (I + "cents::text(3)" + P, "text(3)", "has no modifiers"),
    (I + "CASE WHEN paid THEN 1 ELSE note END AS x" + P, "CASE", "cannot be matched"),
    (I + "CASE WHEN cents THEN 1 END AS x" + P, "cents", "must be boolean, and this is bigint"),
    (I + "CASE paid END AS x" + P, "END", "WHEN is missing here"),
    (I + "coalesce(cents, note)" + P, "coalesce", "COALESCE types bigint and text"),
    (I + "nullif(cents)" + P, "nullif", "NULLIF takes two arguments"),
    (I + "cents IN (SELECT 1) AS x" + P, "SELECT 1", "Write it as a join"),
    (I + "(SELECT 1) AS x" + P, "SELECT 1", "Write it as a join"),
    (I + "EXISTS (SELECT 1) AS x" + P, "EXISTS", "not available inside of an expression"),
    (I + "(cents, fee) AS x" + P, ", fee", "Compare column by column"),
    (I + "cents IS 3 AS x" + P, "3 AS", "NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM"),
    (I + "ARRAY[] AS x" + P, "ARRAY", "Write '{}'::text[]"),
    (I + "cents[1] AS x" + P, "cents[1]", "bigint has no elements"),
    (I + "cents = ANY (3) AS x" + P, "3)", "ANY and ALL need an array"),
    (I + "note COLLATE \"de_DE\" AS x" + P, '"de_DE"', 'Texts have the order of COLLATE "C"'),
    (I + "cents" + P + " WHERE cents", "cents" + "\0", "the condition of WHERE must be boolean"),
    # groups and windows
    (I + "sum(cents)" + P + " WHERE sum(cents) > 1", "sum(cents) >", "not allowed in WHERE"),
    (I + "sum(sum(cents))" + T, "sum(cents))", "the aggregate sum is inside of sum"),
    (I + "account, sum(cents)" + P + " GROUP BY account", "SELECT", "RETAIN UNBOUNDED"),
    (I + "account, sum(cents)" + T + "GROUP BY account", "SELECT", "Add window_start"),
    (I + "account, cents" + T + "GROUP BY account, window_start", "cents", "must appear in the"),
    (I + "sum(cents)" + T + "GROUP BY 7, window_start", "7", "GROUP BY position 7"),
    (I + "count(*)" + T + "GROUP BY date_trunc('day', window_end)", "SELECT", "Add window_start"),
    (I + "count(*) FROM HOP(payments, at, INTERVAL '1 s', INTERVAL '2 s') WHERE window_start > at "
     "GROUP BY window_start", "window_start >", "use HAVING"),
    (I + "max(at < window_end) FROM SESSION(payments, at, INTERVAL '1 s') GROUP BY window_start",
     "max", "max(boolean) does not exist"),
    (I + "count(*) FILTER (WHERE at < window_end) FROM SESSION(payments, at, INTERVAL '1 s') "
     "GROUP BY window_start", "window_end)", "not known before the records are grouped"),
    (I + "count(*)" + T + "WHERE at > window_start GROUP BY window_start LATE INTO late",
     "window_start GROUP", "not known before the records are grouped"),
    (I + "count(*)" + T + "GROUP BY window_start LATE INTO r", "SELECT", "a stream of their own"),
    (I + "window_end, n FROM TUMBLE((SELECT count(*) AS n, window_end" + T + "GROUP BY window_end) "
     "AS x, window_end, INTERVAL '1 hour')", "window_end, n", "is ambiguous. x has such a column"),
    (I + "cents" + P + " HAVING cents > 1", "cents > 1", "HAVING is for groups"),
    (I + "count(*)" + P + " HAVING count(*) > 1 RETAIN UNBOUNDED", "count(*) >", "take back rows"),
    (I + "cents" + P + " RETAIN UNBOUNDED", "RETAIN", "RETAIN is for groups"),
    (I + "count(*)" + P + " RETAIN UNBOUNDED EMIT", None, "ON UPDATE or ON WINDOW CLOSE"),
    (I + "count(*)" + P + " RETAIN UNBOUNDED RETAIN UNBOUNDED", "RETAIN UNBOUNDED\0", "twice"),
    (I + "count(*)" + P + " ALLOWED LATENESS UNBOUNDED", "ALLOWED", "nothing is late"),
    (I + "count(*)" + P + " EMIT ON WINDOW CLOSE", "EMIT", "never close"),
    (I + "count(*)" + T + "GROUP BY window_start RETAIN UNBOUNDED", "RETAIN", "without windows"),
    (I + "abs(DISTINCT cents)" + P, "abs", "DISTINCT is for aggregates"),
    (I + "row_number() OVER (ORDER BY at) AS n" + P, "row_number", "is not available here"),
    (I + "cents FROM TUMBLE(payments)", "TUMBLE", "As in TUMBLE(stream, time"),
    (I + "cents FROM TUMBLE(payments, at)", "TUMBLE", "takes 3 arguments"),
    (I + "cents FROM TUMBLE(payments, cents, INTERVAL '1 day')", "cents, INT", "the event time"),
    (I + "cents FROM TUMBLE(payments, at, 60)", "60", "an interval that is written out"),
    (I + "cents FROM TUMBLE(payments, at, INTERVAL '0 s')", "INTERVAL", "length is positive"),
    (I + "cents FROM TUMBLE(payments, at, INTERVAL '1 month 1 day')", "INTERVAL", "months"),
    (I + "cents FROM HOP(payments, at, INTERVAL '1 month', INTERVAL '1 year')", "INTERVAL '1 m",
     "no fixed length"),
    (I + "cents FROM TUMBLE(payments, at, INTERVAL '1 day', 'Europe/Atlantis')", "'Europe",
     "there is no time zone"),
    (I + "cents FROM TUMBLE(payments, at, INTERVAL '1 day', account)", "account",
     "a time zone that is written out"),
    (I + "cents FROM SESSION(payments, at, INTERVAL '1 day', 'UTC')", "SESSION", "takes 3 arg"),
    (I + "cents FROM CUMULATE(payments, at)", "CUMULATE", "TUMBLE, HOP and SESSION"),
    (I + "cents FROM HOP(payments, at, INTERVAL '2 s', INTERVAL '1 s')", "INTERVAL '2", "steps"),
    (I + "at FROM SESSION(payments, at, INTERVAL '1 s')", "SESSION", "need GROUP BY"),
    (I + "cents" + P + " UNION ALL SELECT cents, fee" + P, "SELECT cents, fee", "same number"),
    (I + "cents" + P + " UNION ALL SELECT note" + P, "note", "UNION types bigint and text"),
    # aggregates
    (I + "first(note)" + W, "first", "first needs an order. Add one: first(x ORDER BY a column)"),
    (I + "last(note)" + W, "last", "the value of the newest record"),
    (I + "last(DISTINCT note ORDER BY at)" + W, "last", "last has no DISTINCT. Leave it out"),
    (I + "last(note ORDER BY '{1}'::int[])" + W, "'{1}'", "Use its elements"),
    (I + "last(at - at ORDER BY at)::text AS x" + W, "at - at", "cannot have the type interval"),
    (I + "first(note) WITHIN GROUP (ORDER BY at)" + W, "at)", "first(x ORDER BY ...)"),
    (I + "sum(cents) WITHIN GROUP (ORDER BY at)" + W, "at)", "sum has no WITHIN GROUP"),
    (I + "sum(*)" + W, "sum", "sum(*) does not exist. Write a column: sum(x)"),
    (I + "rank(1) WITHIN GROUP (ORDER BY cents)" + W, "rank", "FILTER (WHERE x < value)"),
    (I + "percentile_cont(0.5)" + W, "percentile_cont", "WITHIN GROUP is missing"),
    (I + "mode()" + W, "mode", "As in mode() WITHIN GROUP (ORDER BY x)"),
    (I + "mode() WITHIN GROUP (ORDER BY cents, fee)" + W, "fee)", "mode sorts by one value"),
    (I + "percentile_disc(DISTINCT 1) WITHIN GROUP (ORDER BY fee)" + W, "percentile_disc",
     "no DISTINCT besides WITHIN GROUP"),
    (I + "percentile_cont(2) WITHIN GROUP (ORDER BY cents)" + W, "2)", "not between 0 and 1"),
    (I + "percentile_disc(array[0, -0.1]) WITHIN GROUP (ORDER BY cents)" + W, "array[0",
     "percentile value -0.1 is not between 0 and 1"),
    (I + "percentile_cont(1 / (1 - 1)) WITHIN GROUP (ORDER BY cents)" + W, "1 / (1",
     "division by zero"),
    (I + "percentile_cont(fee) WITHIN GROUP (ORDER BY cents)" + W, "fee)", "is not constant"),
    (I + "percentile_cont(0.5) WITHIN GROUP (ORDER BY note)" + W, "percentile_cont",
     "function percentile_cont(numeric, text) does not exist"),
    (I + "percentile_cont(0.5) WITHIN GROUP (ORDER BY at - at)::text AS x" + W, "at - at",
     "cannot have the type interval. Use extract(epoch FROM ...)"),
    (I + "array_agg(DISTINCT cents ORDER BY fee)" + W, "fee)", "must appear in argument list"),
    (I + "array_agg(cents ORDER BY at - at)" + W, "at - at", "interval have no order here"),
    (I + "array_agg(cents ORDER BY note::jsonb)" + W, "note::", "Use ->> 'field', a text"),
    (I + "array_agg(cents ORDER BY note::char(3))" + W, "note::", "Cast it: ::text"),
    (I + "array_agg(DISTINCT array[cents])::text AS x" + W, "array[", "Use its elements"),
    (I + "count(DISTINCT array[cents])" + W, "array[", "have no order here"),
    (I + "array_agg(array[cents])::text AS x" + W, "array_agg", "arrays of arrays"),
    (I + "max(note::char(3))" + W, "note::", "Cast it: ::text"),
    (I + "string_agg(cents, ',')" + W, "string_agg", "takes arguments of these types; cast them"),
    (I + "string_agg(DISTINCT note, account)" + W, "account)", "Write the delimiter as a text"),
    (I + "corr(DISTINCT cents, fee)" + W, "corr", "corr(DISTINCT ...) is not available"),
    (I + "json_agg(cents)" + W, "json_agg", "array_agg keeps the values as an array"),
    (I + "sum(cents ORDER BY sum(fee))" + W, "sum(fee)", "the aggregate sum is inside of sum"),
    # rows that would have to be taken back
    (I + "count(*)" + T + "GROUP BY window_start HAVING count(*) < 2 ALLOWED LATENESS UNBOUNDED",
     "count(*) <", "HAVING with ALLOWED LATENESS"),
    (I + "count(*)" + T + "GROUP BY window_start HAVING count(*) < 2 EMIT ON UPDATE",
     "count(*) <", "HAVING with EMIT ON UPDATE"),
    (I + "count(*) FROM SESSION(payments, at, INTERVAL '1 s') GROUP BY window_start ALLOWED "
     "LATENESS UNBOUNDED", "ALLOWED", "rows of sessions that a later record joins"),
    (I + "count(*)" + T + "GROUP BY window_start LATE INTO x ALLOWED LATENESS UNBOUNDED", "LATE",
     "no record is late"),
    (I + "cents" + P + " LATE INTO x", "LATE", "LATE is for groups"),
    (KEPT + "; INSERT INTO q SELECT n, count(*) AS c FROM r GROUP BY n RETAIN UNBOUNDED",
     "SELECT n", "counted as well"),
    (KEPT + "; INSERT INTO q SELECT n FROM r WHERE n < 3", "n < 3", "no longer fits would stay"),
    (KEPT + "; INSERT INTO q SELECT n FROM r", "SELECT n", "no longer be in their order"),
    (I + "n FROM (SELECT count(*) AS n" + P + " RETAIN UNBOUNDED) AS x WHERE n < 3", "n < 3",
     "no longer fits would stay"),
    (I + "n FROM (SELECT count(*) AS n" + P + " RETAIN UNBOUNDED) AS x, unnest(ARRAY[1]) AS y",
     "SELECT n", "no longer be in their order"),
    (I + "account FROM (SELECT * FROM (SELECT account, row_number() OVER (PARTITION BY account "
     "ORDER BY at) AS n" + P + ") AS x WHERE n < 3 RETAIN UNBOUNDED) AS y", "SELECT * FROM",
     "Add n to the columns"),
    (KEPT + "; INSERT INTO r SELECT account, cents AS n" + P, "SELECT account, cents",
     "a table of its own"),
    (KEPT + "; INSERT INTO q SELECT p.cents FROM payments p JOIN r ON r.account = p.account RETAIN "
     "UNBOUNDED", "JOIN r", "FOR SYSTEM_TIME AS OF"),
    (KEPT + "; INSERT INTO q SELECT * FROM (SELECT *, row_number() OVER (ORDER BY n) FROM r) AS x "
     "WHERE row_number < 3 RETAIN UNBOUNDED", "SELECT *, row", "no longer be in their order"),
    (I + "* FROM (SELECT count(*), row_number() OVER (ORDER BY count(*))" + P + " GROUP BY account "
     "RETAIN UNBOUNDED) AS x WHERE row_number < 3 RETAIN UNBOUNDED", "SELECT count(*), row",
     "would be kept for ever"),
    # joins
    (J + "ON true", "JOIN", "an equality"),
    (J + "ON p.cents < o.item", "JOIN", "an equality"),
    (J + "ON p.account = o.customer", "JOIN", "keep all records for ever"),
    (J + "ON p.account = o.customer AND o.placed > p.at", "JOIN", "AND b.at BETWEEN a.at"),
    (J + "ON p.account = o.customer AND o.placed = p.at RETAIN UNBOUNDED", "UNBOUNDED", "bounds"),
    (J.replace(" JOIN", " LEFT JOIN") + "ON p.account = o.customer RETAIN UNBOUNDED", "LEFT",
     "never knows that there is no partner"),
    (J + "ON p.account = o.item RETAIN UNBOUNDED", "p.account =", "operator does not exist"),
    (J + "ON p.account = o.custome RETAIN UNBOUNDED", "o.custome", "Did you mean customer?"),
    (J + "ON account = x.customer RETAIN UNBOUNDED", "x.customer", "The streams are called p, o"),
    (J.replace("p.cents", "price") + "ON account = customer RETAIN UNBOUNDED", "price",
     "is ambiguous. Write p.price or o.price"),
    (J + "USING (account)", "USING", "Write ON"),
    (J + "ON count(*) = o.item RETAIN UNBOUNDED", "count", "not allowed in JOIN conditions"),
    (J + "ON p.account = o.customer AND p.at = o.placed RETAIN INTERVAL '1 day'",
     "INTERVAL", "bounds this join already"),
    (J + "ON p.account = o.customer RETAIN INTERVAL '1 month'", "INTERVAL", "no fixed length"),
    (J + "ON p.price + 0.5::float8 = o.price::float8 RETAIN UNBOUNDED", "JOIN", "an equality"),
    (I + "o.item FROM payments p JOIN HOP(orders, placed, INTERVAL '1 s', INTERVAL '2 s') o ON "
     "o.customer = p.account RETAIN UNBOUNDED", "HOP", "Join the result of such a query"),
    (I + "item FROM payments p JOIN orders FOR SYSTEM_TIME AS OF p.cents AS o ON o.item = p.cents",
     "p.cents AS", "the column with the event time"),
    (I + "item FROM payments p RIGHT JOIN orders FOR SYSTEM_TIME AS OF p.at AS o ON o.item = "
     "p.cents", "RIGHT", "RIGHT JOIN with AS OF"),
    (I + "item FROM payments p LEFT JOIN orders FOR SYSTEM_TIME AS OF p.at AS o ON o.item = "
     "p.cents AND o.price < p.price", "o.price <", "equalities in ON"),
    (I + "item FROM TUMBLE(payments, at, INTERVAL '1 s') p JOIN orders FOR SYSTEM_TIME AS OF "
     "p.window_end AS o ON o.item = p.cents", "p.window_end AS", "the column with the event time"),
    (J + "ON p.account = o.customer AND p.at BETWEEN o.placed - INTERVAL '1 s' AND o.placed JOIN "
     "orders FOR SYSTEM_TIME AS OF p.at AS x ON x.item = o.item", "p.at AS", "the later time"),
    (I + "o.item FROM payments p LEFT JOIN orders FOR SYSTEM_TIME AS OF p.at AS o ON o.item = "
     "p.cents AND o.price < 3", "o.price <", "equalities in ON"),
    (J.replace("JOIN orders o", "JOIN orders FOR SYSTEM_TIME AS OF p.at AS o")
     + "ON p.account = o.customer AND o.item < p.cents FULL JOIN payments q ON q.at = p.at",
     "o.item <", "an outer join follows"),
    (J + "ON p.account = o.customer RETAIN INTERVAL '1 day' JOIN orders x ON x.item = o.item AND "
     "x.placed = o.placed", "JOIN orders x",
     "o_placed is not the event time of the rows that the joins before give"),
    (I + "o.item FROM (SELECT account, max(at) AS last" + T + "GROUP BY account, window_start) c "
     "JOIN orders o ON c.account = o.customer AND c.last = o.placed", "JOIN orders o",
     "last is not the event time of the rows that the queries of \"c\" give"),
    (I + "o.item FROM TUMBLE(payments, at, INTERVAL '1 s') p JOIN orders o ON p.account = "
     "o.customer AND o.placed BETWEEN p.window_start AND p.window_start", "JOIN orders",
     "keep all records for ever"),
    (I + "o.item FROM orders o JOIN TUMBLE((SELECT count(*) AS n, window_end" + T + "GROUP BY "
     "window_end) AS x, window_end, INTERVAL '1 h') AS y ON o.item = y.n RETAIN UNBOUNDED",
     "TUMBLE((", "and its windows have one as well"),
    # items of arrays
    (I + "x FROM orders, unnest(item) AS x", "item)", "unnest takes an array, not bigint"),
    (I + "x FROM orders, unnest(tags, tags) AS x", ", tags)", "unnest takes one array"),
    (I + "x FROM orders, unnest(tags) AS x(a, b)", "unnest", "unnest has 1 columns, not 2"),
    (I + "x FROM orders LEFT JOIN unnest(tags) AS x ON x = 'a'", "x =", "ON true"),
    (I + "x FROM orders, unnest(tags) AS orders", "unnest", "specified more than once"),
    (I + "x FROM orders, LATERAL payments AS x", "LATERAL", "available with unnest(array)"),
    (I + "x FROM unnest(tags) AS x", "unnest", "after a stream unnest(array)"),
    # first rows
    (F + "n FROM (SELECT cents, row_number() OVER (ORDER BY at) AS n FROM payments) AS x "
     "RETAIN UNBOUNDED", "row_number", "Add WHERE n <= 10"),
    (F + "n FROM (SELECT cents, row_number() OVER (ORDER BY at) AS n FROM payments) AS x "
     "WHERE n <= 3", "SELECT cents, row", "kept for ever"),
    (F + "cents FROM (SELECT cents, row_number() OVER (ORDER BY at) AS n FROM payments) AS x "
     "WHERE n <= 3 RETAIN UNBOUNDED", "SELECT cents FROM (", "Add n to the columns"),
    (F + "cents FROM (SELECT cents, row_number() OVER (ORDER BY at) AS n FROM payments) AS x "
     "WHERE n < 1 RETAIN UNBOUNDED", "n < 1", "ranks begin with 1"),
    (F + "cents FROM (SELECT cents, row_number() OVER (ORDER BY at) AS n FROM payments) AS x "
     "WHERE n < 2 AND cents > 3 RETAIN UNBOUNDED", "cents > 3", "no longer fits would stay"),
    (F + "cents FROM (SELECT cents, rank() OVER (ORDER BY at) AS n FROM payments) AS x "
     "WHERE n < 2 RETAIN UNBOUNDED", "SELECT cents, rank", "use ROW_NUMBER()"),
    (F + "cents FROM (SELECT cents, lag(cents) OVER (ORDER BY at) AS n FROM payments) AS x "
     "WHERE n < 2", "lag", "Available are ROW_NUMBER"),
    (F + "cents FROM (SELECT cents, rank() OVER (PARTITION BY at) AS n FROM payments) AS x "
     "WHERE n < 2", "rank", "needs an order"),
    (F + "cents FROM (SELECT cents, rank(1) OVER (ORDER BY at) AS n FROM payments) AS x "
     "WHERE n < 2", "rank", "has no arguments"),
    (F + "DISTINCT ON (account) cents FROM payments ORDER BY at RETAIN UNBOUNDED", "at RETAIN",
     "must match initial ORDER BY"),
    (F + "DISTINCT ON (2) cents FROM payments ORDER BY at RETAIN UNBOUNDED", "2)",
     "DISTINCT ON position 2 is not in select list"),
    (F + "DISTINCT ON (1) * FROM payments RETAIN UNBOUNDED", "1)", "comes after *"),
    (F + "DISTINCT ON (x) cents AS x, fee AS x FROM payments RETAIN UNBOUNDED", "x) c",
     "is ambiguous"),
    (F + "DISTINCT 1 AS one FROM payments", "SELECT", "kept for ever"),
    (F + "n FROM (SELECT DISTINCT cents, row_number() OVER (ORDER BY at) AS n FROM payments) AS x "
     "WHERE n < 2 RETAIN UNBOUNDED", "row_number", "FROM (SELECT DISTINCT"),
    (F + "DISTINCT account, count(*) FROM payments GROUP BY account", "SELECT", "DISTINCT with"),
    (F + "DISTINCT account" + T, "SELECT", "Add window_start to the columns"),
    # columns that no struct can have
    (I + "cents AS class" + P, "cents", "no word of Python"),
    ('INSERT INTO r ("a b") SELECT cents' + P, "INSERT", '"a b" cannot name a column'),
    ('INSERT INTO r ("x=1, y") SELECT cents' + P, "INSERT", "cannot name a column"),
    (I + "at - at AS d" + P, "at - at", "a column cannot have the type interval"),
    (I + "note::jsonb AS j" + P, "note", "a column cannot have the type jsonb"),
    (I + "max(at - at)" + T + "GROUP BY window_start", "max", "cannot have the type interval"),
    (I + "count(*) FROM HOP(payments, at, INTERVAL '7 s', INTERVAL '20 s') GROUP BY window_start",
     "INTERVAL '20", "not made of whole steps"),
    ("", None, "there is no statement"),
    ("INSERT INTO payments SELECT cents" + P, "INSERT", "The stream has: account text NOT NULL"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "at", "says"), WRONG, ids=[query for query, _, _ in WRONG])
def test_a_wrong_query_is_refused_where_it_is_wrong(query: str, at: str | None, says: str) -> None:
    with pytest.raises(SqlError) as raised:
        pipeline_of(query)
    error = raised.value
    assert says in str(error)
    wanted = len(query) if at is None else (query + "\0").index(at)
    assert error.place.offset == wanted, error.place.underlined()
    assert str(error).startswith(f"line 1, column {wanted + 1}: ")


def test_the_line_is_shown_with_a_mark() -> None:
    with pytest.raises(SqlError) as raised:
        pipeline_of("INSERT INTO r\nSELECT account,\n  cent\nFROM payments")
    assert str(raised.value) == (
        'line 3, column 3: column "cent" does not exist. Did you mean cents?\n  cent\n  ^'
    )
