-- Statistics of each channel and day.
CREATE TABLE q16 (
    channel text, day text, minute text,
    total_bids bigint, rank1_bids bigint, rank2_bids bigint, rank3_bids bigint,
    total_bidders bigint, rank1_bidders bigint, rank2_bidders bigint, rank3_bidders bigint,
    total_auctions bigint, rank1_auctions bigint, rank2_auctions bigint, rank3_auctions bigint,
    PRIMARY KEY (channel, day)
);

INSERT INTO q16
SELECT channel, to_char(date_time, 'YYYY-MM-DD'), max(to_char(date_time, 'HH24:MI')),
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
FROM tagged_bids
GROUP BY 1, 2
RETAIN INTERVAL '7 days';
