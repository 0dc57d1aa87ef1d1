-- Waits for senders that have begun, so that each record is in the copy's snapshot, or is sent to both.
CREATE TRIGGER {trigger} AFTER INSERT ON {like} REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION {tee_sent}()
