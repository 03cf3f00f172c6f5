"""Check the whole installation, and advise what to do about each finding."""
