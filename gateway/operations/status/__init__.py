"""The health snapshot: what needs attention, rates, backlog, handlers, engines, spool."""
