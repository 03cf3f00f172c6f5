"""The table of operations on a gateway, for use over HTTP or in the same process."""
