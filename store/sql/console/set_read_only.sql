-- The session changes nothing. A startup option would not do: with target_session_attrs=read-write in the
-- store's address, libpq refuses a session that begins as read-only.
SET default_transaction_read_only = on
