"""The suite: unit (no I/O), integration (real engines), e2e (real processes)."""
