"""The process and what every service in it needs: tasks, leases, load, the logical clock."""
