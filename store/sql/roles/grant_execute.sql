-- Lets a role call a function.
GRANT EXECUTE ON FUNCTION {function} TO {role}
