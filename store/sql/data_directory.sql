-- Where the files of the server at the other end are.
SHOW data_directory
