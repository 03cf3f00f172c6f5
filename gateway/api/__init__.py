"""What people can ask and order: one table of operations, over HTTP or in the same process."""
