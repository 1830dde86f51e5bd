"""The event vocabulary and event transport: local delivery, PodSource, journal and replay."""
