"""Serves a step over HTTP: requests, responses, attempts, health checks, metrics and spans."""
