-- Lets a view of another schema read the tables that now have the names of those that it read.
CREATE OR REPLACE VIEW {view} {options} AS {definition}
