"""Serves functions over HTTP: decodes events, encodes responses, publishes attempts, and exports metrics and spans."""
