-- SET takes no snapshot, so LOCK and SET TRANSACTION SNAPSHOT may follow. The time zone is for views and filters
-- that convert times without one. By default a cursor is planned as if a tenth of its rows were fetched; here all are.
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL timezone = 'UTC';
SET LOCAL cursor_tuple_fraction = 1
