"""Fuzzing of every parser that a stranger can reach: `make fuzz`, and in short in the suite."""
