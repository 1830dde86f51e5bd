"""The event types, and the transport of events: local delivery, PodSource, journal and replay."""
