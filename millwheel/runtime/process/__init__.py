"""The process, and the parts that all services need: tasks, the lease, load, the logical clock."""
