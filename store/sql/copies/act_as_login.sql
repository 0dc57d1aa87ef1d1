-- Lets the rest of a transaction act as the login itself again.
SET LOCAL ROLE NONE
