-- Makes a view as the origin has it.
CREATE VIEW {view} {options} AS {definition}
