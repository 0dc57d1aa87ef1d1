-- Statistics of each auction and day.
CREATE TABLE q17 (
    auction bigint, day text, total_bids bigint, rank1_bids bigint, rank2_bids bigint,
    rank3_bids bigint, min_price bigint, max_price bigint, avg_price numeric, sum_price numeric,
    PRIMARY KEY (auction, day)
);

INSERT INTO q17
SELECT auction, to_char(date_time, 'YYYY-MM-DD'), count(*),
    count(*) FILTER (WHERE price < 10000),
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000),
    count(*) FILTER (WHERE price >= 1000000),
    min(price), max(price), avg(price), sum(price)
FROM bids
GROUP BY 1, 2
RETAIN INTERVAL '7 days';
