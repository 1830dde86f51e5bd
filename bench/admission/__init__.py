"""Measures the latency of the admission webhook, compared with a no-op webhook."""
