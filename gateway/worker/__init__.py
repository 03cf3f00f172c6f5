"""From a lease to its settlement: runner, execution, context, sweep."""
