"""One look at the whole: what needs attention, rates, backlog, handlers, engines, spool."""
