"""Builds and downloads the files that the tests of a make target need, before the first test starts.

Usage: `python -m tests.dependencies TARGET`. Existing files are not built or downloaded again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from localcluster.knative import install
from localcluster.kubevirt import crds as kubevirt
from localcluster.nodes import product_image
from localcluster.openshift import crds as openshift
from localcluster.programs import build, toolchain
from localcluster.programs.build import Toolset
from localcluster.errors import LocalClusterError
from tests.manifests import cert_manager, prometheus
from tests.manifests.rendering import knative_crds

_NODES = (build.KUBERNETES, build.NODES, build.KNATIVE)
TOOLSETS: dict[str, tuple[Toolset, ...]] = {
    "test": (build.KUBERNETES,),
    "test-all": (build.KUBERNETES, build.KUBEVIRT),
    "e2e": (build.KUBERNETES, build.KNATIVE, build.RABBITMQ, build.SERVING),
    "e2e-real": _NODES,
    "e2e-installs": (
        *_NODES,
        *(build.RABBITMQ, build.RABBITMQ_CONTROLLER, build.RABBITMQ_WEBHOOK, build.RABBITMQ_OPERATORS),
    ),
}
"""Make target → the programs that its tests start."""
FILES: tuple[Callable[[], object], ...] = (
    *(knative_crds, openshift.files, kubevirt.file, cert_manager.crds, prometheus.crds),
    *(install.EVENTING.manifests, install.SERVING.manifests),
)
"""Downloads of other projects' CRDs and manifests; each does nothing if its files exist."""
SHIPPED = ("e2e-real", "e2e-installs")
"""Targets whose tests run the product's image."""


def prepare(target: str) -> None:
    """Build and download the files that the tests of a make target need. Raises `LocalClusterError`."""
    build.build_all(TOOLSETS[target])
    with build.alone("Go"):
        toolchain.go(build.cache())  # before the downloads, each of which would install it
    with ThreadPoolExecutor(len(FILES)) as threads:
        for done in [threads.submit(download) for download in FILES]:
            done.result()
    if target in SHIPPED:
        print("building the product's image, unless it is there: about a minute", flush=True)
        product_image.archive()


if __name__ == "__main__":
    try:
        prepare(sys.argv[1])
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
