"""Tells people, once, of what needs them: looks, decides, and sends."""
