"""Measures the product without other drainers over a period of time: CPU usage, events and API requests."""
