-- Hot items: the auctions with the most bids, in windows of 10 s that begin every 5 s.
CREATE TABLE q5 (
    auction bigint, window_start timestamptz, window_end timestamptz, bids bigint
);

INSERT INTO q5
WITH counted AS (
    SELECT auction, window_start, window_end, count(*) AS bids
    FROM HOP(bids, date_time, INTERVAL '5 seconds', INTERVAL '10 seconds')
    GROUP BY auction, window_start, window_end
), most AS (
    SELECT window_start, window_end, max(bids) AS bids
    FROM counted GROUP BY window_start, window_end
)
SELECT c.auction, c.window_start, c.window_end, c.bids
FROM counted c JOIN most m
    ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.bids >= m.bids;
