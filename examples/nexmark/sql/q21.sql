-- The generator's bids have no channel and no address.
CREATE STREAM tagged_bids AS
SELECT *,
    CASE auction % 5
        WHEN 0 THEN 'Apple' WHEN 1 THEN 'Google' WHEN 2 THEN 'Facebook' WHEN 3 THEN 'Baidu'
        ELSE 'channel-' || bidder % 100
    END AS channel,
    'https://www.nexmark.com/' || substring(md5(auction::text) FOR 4) || '/item/' || auction
        || '/bid?query=' || bidder % 7
        || CASE WHEN auction % 5 = 4 THEN '&channel_id=' || bidder % 100 ELSE '' END AS url
FROM bids;

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
