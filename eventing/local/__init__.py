"""Local delivery: Knative's sources, Broker and Triggers in one process, configured by the same manifests."""

import kube.client.lazy_aiohttp  # noqa: F401  # must precede the first import of aiohttp
