TRUNCATE {staging}, {batches}
