"""How people write things down: durations, sizes, YAML with line numbers, and what was wrong."""
