-- Average selling price by seller: of the last ten auctions. Refused: a higher bid replaces the
-- winner of an auction, and the mean of rows before is not available.
CREATE TABLE q6 (seller bigint, price numeric, PRIMARY KEY (seller));

INSERT INTO q6
SELECT seller, avg(final) OVER (
    PARTITION BY seller ORDER BY expires ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
) AS price
FROM (
    SELECT DISTINCT ON (a.id) a.id, a.seller, a.expires, b.price AS final
    FROM auctions a JOIN bids b ON a.id = b.auction
    WHERE b.date_time BETWEEN a.date_time AND a.expires
    ORDER BY a.id, b.price DESC
    RETAIN UNBOUNDED
) AS x;
