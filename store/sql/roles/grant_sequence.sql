-- Lets a role draw numbers of a sequence.
GRANT USAGE ON SEQUENCE {sequence} TO {role}
