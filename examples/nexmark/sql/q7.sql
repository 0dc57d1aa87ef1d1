-- Highest bid: the bids with the highest price of each window of 10 s.
CREATE TABLE q7 (
    window_start timestamptz, auction bigint, bidder bigint, price bigint, date_time timestamptz,
    extra text
);

INSERT INTO q7
SELECT m.window_start, b.auction, b.bidder, b.price, b.date_time, b.extra
FROM bids b JOIN (
    SELECT window_start, window_end, max(price) AS price
    FROM TUMBLE(bids, date_time, INTERVAL '10 seconds')
    GROUP BY window_start, window_end
) AS m ON b.price = m.price
WHERE b.date_time >= m.window_end - INTERVAL '10 seconds' AND b.date_time < m.window_end;
