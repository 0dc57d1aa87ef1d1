"""Time as pure data structures: holds, timer queues, low watermarks. No await, SQL or clock."""
