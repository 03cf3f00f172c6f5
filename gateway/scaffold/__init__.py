"""Writes a project that works, and the next handler of one."""
