"""Recorded events delivered again: replay, comparison with then, redrive of dead letters."""
