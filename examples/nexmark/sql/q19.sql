-- The ten highest bids of each auction.
CREATE TABLE q19 (
    auction bigint, rank bigint, bidder bigint, price bigint, date_time timestamptz, extra text,
    PRIMARY KEY (auction, rank)
);

INSERT INTO q19
SELECT auction, rank, bidder, price, date_time, extra
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY auction ORDER BY price DESC, date_time, bidder, extra
    ) AS rank
    FROM bids
) AS ranked
WHERE rank <= 10
RETAIN UNBOUNDED;
