"""Local delivery: Knative's sources, Broker and Triggers in one process, configured with the same manifests."""
