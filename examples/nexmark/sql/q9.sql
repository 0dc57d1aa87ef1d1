-- Winning bids: the highest bid of each auction so far.
CREATE TABLE q9 (
    auction bigint, seller bigint, category bigint, reserve bigint, expires timestamptz,
    bidder bigint, price bigint, date_time timestamptz, PRIMARY KEY (auction)
);

INSERT INTO q9
SELECT auction, seller, category, reserve, expires, bidder, price, date_time
FROM (
    SELECT a.id AS auction, a.seller, a.category, a.reserve, a.expires, b.bidder, b.price, b.date_time,
        row_number() OVER (
            PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.bidder
        ) AS rank
    FROM auctions a JOIN bids b ON a.id = b.auction
    WHERE b.price >= a.reserve AND b.date_time < a.expires
) AS ranked
WHERE rank <= 1
RETAIN UNBOUNDED;
