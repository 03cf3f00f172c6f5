"""Checks the whole installation, and says what to do about each finding."""
