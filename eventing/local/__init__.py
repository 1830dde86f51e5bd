"""Local delivery: Knative's sources, Broker and Triggers in one process, configured by the same manifests."""

import kube.door.lean_aiohttp  # noqa: F401  # before a module here imports aiohttp
