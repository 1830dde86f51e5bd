"""Observations of the product alone over a period of time: its activity and its API requests."""
