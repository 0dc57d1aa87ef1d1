-- The last bid of each bidder on each auction.
CREATE TABLE q18 (
    auction bigint, bidder bigint, price bigint, date_time timestamptz, extra text,
    PRIMARY KEY (auction, bidder)
);

INSERT INTO q18
SELECT auction, bidder, price, date_time, extra
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY bidder, auction ORDER BY date_time DESC, price DESC, extra
    ) AS rank
    FROM bids
) AS ranked
WHERE rank <= 1
RETAIN UNBOUNDED;
