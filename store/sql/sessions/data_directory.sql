-- The data directory of the server.
SHOW data_directory
