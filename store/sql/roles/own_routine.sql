-- Gives a function to a role.
ALTER ROUTINE {routine} OWNER TO {role}
