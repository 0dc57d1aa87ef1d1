DROP TABLE IF EXISTS {staging}, {batches}
