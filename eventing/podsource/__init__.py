"""PodSource: a Knative ContainerSource that watches the pods and disruption budgets of nodes under maintenance."""

import kube.client.lazy_aiohttp  # noqa: F401  # must precede the first import of aiohttp
