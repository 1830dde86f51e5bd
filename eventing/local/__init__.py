"""Local delivery: Knative's sources, Broker and Triggers in one process, configured by the same manifests."""
