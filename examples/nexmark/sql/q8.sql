-- New users: people who registered and opened an auction in the same window of 10 s.
CREATE TABLE q8 (id bigint, name text, window_start timestamptz, window_end timestamptz);

INSERT INTO q8
SELECT p.id, p.name, p.window_start, p.window_end
FROM (
    SELECT id, name, window_start, window_end
    FROM TUMBLE(people, date_time, INTERVAL '10 seconds')
    GROUP BY id, name, window_start, window_end
) AS p JOIN (
    SELECT seller, window_start, window_end
    FROM TUMBLE(auctions, date_time, INTERVAL '10 seconds')
    GROUP BY seller, window_start, window_end
) AS a ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end;
