-- Deletes requests that were settled long ago.
SELECT {forget_requests}()
