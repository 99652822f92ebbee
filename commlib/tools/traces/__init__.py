"""Requests for a radix cache, as lines of a trace: made up, or imported from public traces; no torch is loaded."""
