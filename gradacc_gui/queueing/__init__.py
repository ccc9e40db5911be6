"""The run queue: runs that wait for a device, and the one process that starts them. No Qt."""
