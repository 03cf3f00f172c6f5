"""`gateway up`, embedded engines and the scaffold."""
