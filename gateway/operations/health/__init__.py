"""The health snapshot: one reading of the whole system, what needs attention, and the doctor."""
