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
