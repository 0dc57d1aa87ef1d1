-- The user's statement takes its snapshot when it runs, after Postgres has locked the tables it reads: so no
-- bucket is dropped between lock and snapshot.
BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY
