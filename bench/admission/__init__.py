"""Measures the admission webhook's latency in comparison with a no-op webhook."""
