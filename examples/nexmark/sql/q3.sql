-- Local items: auctions of a category with their sellers, if these live in one of three states.
CREATE TABLE q3 (name text, city text, state text, id bigint);

INSERT INTO q3
SELECT p.name, p.city, p.state, a.id
FROM auctions a JOIN people p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
RETAIN UNBOUNDED;
