"""Everything under deploy/ is tried, or checked against what reads it."""
