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

-- The directories of each bid's address.
CREATE TABLE q22 (
    auction bigint, bidder bigint, price bigint, channel text, dir1 text, dir2 text, dir3 text
);

INSERT INTO q22
SELECT auction, bidder, price, channel,
    split_part(url, '/', 4), split_part(url, '/', 5), split_part(url, '/', 6)
FROM tagged_bids;
