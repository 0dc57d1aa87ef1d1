-- Calculation: the published query has a function of the user that counts a letter.
CREATE TABLE q14 (
    auction bigint, bidder bigint, price numeric, bid_time_type text, date_time timestamptz,
    extra text, letters int
);

INSERT INTO q14
SELECT auction, bidder, 0.908 * price,
    CASE
        WHEN extract(hour FROM date_time) BETWEEN 8 AND 18 THEN 'dayTime'
        WHEN extract(hour FROM date_time) <= 6 OR extract(hour FROM date_time) >= 20
            THEN 'nightTime'
        ELSE 'otherTime'
    END,
    date_time, extra, length(extra) - length(replace(extra, 'c', ''))
FROM bids
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;
