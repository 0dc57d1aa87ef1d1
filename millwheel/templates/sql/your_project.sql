-- Visits of pages: by minute, and each visitor's stays.
--
--   millwheel run your_project.sql --store store
--   millwheel sql 'SELECT * FROM stays ORDER BY began, visitor' --store store

CREATE SOURCE visits (
    at timestamptz NOT NULL,
    visitor text NOT NULL,
    page text NOT NULL,
    WATERMARK FOR at AS at - INTERVAL '10 seconds'
) WITH (connector = 'files', path = 'visits.jsonl');

CREATE TABLE minutes (
    page text, minute timestamptz, visits bigint, visitors bigint,
    PRIMARY KEY (page, minute)
);

INSERT INTO minutes
SELECT page, window_start, count(*), count(DISTINCT visitor)
FROM TUMBLE(visits, at, INTERVAL '1 minute')
GROUP BY page, window_start;

-- A stay ends when its visitor has asked for no page for two minutes.
CREATE TABLE stays (
    visitor text, began timestamptz, visits bigint, first_page text, last_page text,
    PRIMARY KEY (visitor, began)
);

INSERT INTO stays
SELECT visitor, window_start, count(*), first(page ORDER BY at), last(page ORDER BY at)
FROM SESSION(visits, at, INTERVAL '2 minutes')
GROUP BY visitor, window_start;
