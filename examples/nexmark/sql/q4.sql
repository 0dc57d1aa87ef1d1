-- Average price per category: the mean of the highest prices. Refused: a higher price replaces
-- a former one, which would have to be taken out of the mean.
CREATE TABLE q4 (category bigint, price numeric, PRIMARY KEY (category));

INSERT INTO q4
SELECT category, avg(final)
FROM (
    SELECT a.id, a.category, max(b.price) AS final
    FROM auctions a JOIN bids b ON a.id = b.auction
    WHERE b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.category
    RETAIN UNBOUNDED
) AS x
GROUP BY category
RETAIN UNBOUNDED;
