-- Bids with the number of their channel.
CREATE TABLE q21 (auction bigint, bidder bigint, price bigint, channel text, channel_id text);

INSERT INTO q21
SELECT auction, bidder, price, channel,
    CASE lower(channel)
        WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
        WHEN 'baidu' THEN '3' ELSE substring(url FROM '(?:&|^)channel_id=([^&]*)')
    END
FROM tagged_bids
WHERE url ~ '(&|^)channel_id=([^&]*)'
    OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu');
