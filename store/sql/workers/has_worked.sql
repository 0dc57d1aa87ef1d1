-- Whether the engine has committed anything for the pipeline besides the first commit of each interval.
SELECT EXISTS (SELECT FROM {commit_record} WHERE n > 0)
