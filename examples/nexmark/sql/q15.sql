-- Statistics of each day.
CREATE TABLE q15 (
    day text,
    total_bids bigint, rank1_bids bigint, rank2_bids bigint, rank3_bids bigint,
    total_bidders bigint, rank1_bidders bigint, rank2_bidders bigint, rank3_bidders bigint,
    total_auctions bigint, rank1_auctions bigint, rank2_auctions bigint, rank3_auctions bigint,
    PRIMARY KEY (day)
);

INSERT INTO q15
SELECT to_char(date_time, 'YYYY-MM-DD'),
    count(*),
    count(*) FILTER (WHERE price < 10000),
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000),
    count(*) FILTER (WHERE price >= 1000000),
    count(DISTINCT bidder),
    count(DISTINCT bidder) FILTER (WHERE price < 10000),
    count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000),
    count(DISTINCT bidder) FILTER (WHERE price >= 1000000),
    count(DISTINCT auction),
    count(DISTINCT auction) FILTER (WHERE price < 10000),
    count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000),
    count(DISTINCT auction) FILTER (WHERE price >= 1000000)
FROM bids
GROUP BY 1
RETAIN INTERVAL '7 days';
