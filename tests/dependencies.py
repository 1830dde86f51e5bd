"""Builds and downloads the files that a make target's tests need, before the first test starts.

Usage: `python -m tests.dependencies TARGET`. Existing files are not built or downloaded again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from localcluster.components import crds
from localcluster.errors import LocalClusterError
from localcluster.knative import install
from localcluster.kubevirt import crds as kubevirt
from localcluster.nodes import product_image
from localcluster.programs import build, func_module, go_install
from localcluster.programs.build import Toolset
from tests.manifests import cert_manager, prometheus
from tests.manifests.rendering import fetch_knative_crds

_REAL_NODE_TOOLSETS = (
    *(build.KUBERNETES, build.NODES, build.KNATIVE),
    *(build.SERVING, build.TRAEFIK, build.REGISTRY, build.KN),
)
TOOLSETS: dict[str, tuple[Toolset, ...]] = {
    "test": (build.KUBERNETES,),
    "test-all": (build.KUBERNETES, build.KUBEVIRT),
    "test-distribution": (build.KUBERNETES, build.HELM, build.OLM, build.ACTIONLINT, build.KREW),
    "e2e": (build.KUBERNETES, build.KNATIVE, build.RABBITMQ, build.SERVING),
    "e2e-real": _REAL_NODE_TOOLSETS,
    "e2e-installs": (
        *_REAL_NODE_TOOLSETS,
        *(build.RABBITMQ, build.RABBITMQ_CONTROLLER, build.RABBITMQ_WEBHOOK, build.RABBITMQ_OPERATORS, build.HELM),
    ),
}
"""Map from make target to the toolsets whose binaries the target's tests start."""
DOWNLOADS: tuple[Callable[[], object], ...] = (
    *(
        fetch_knative_crds,
        crds.fetch_openshift_crd_files,
        kubevirt.fetch_schemas_file,
        cert_manager.fetch_crds,
        prometheus.fetch_crds,
        func_module.download,
    ),
    *(install.EVENTING.load_manifests, install.SERVING.load_manifests),
)
"""Functions that download CRDs and manifests of other projects, unless the files already exist."""
IMAGE_TARGETS = ("e2e-real", "e2e-installs")
"""Make targets whose tests run the product's container image."""


def prepare_dependencies(target: str) -> None:
    """Build and download the files that a make target's tests need. Raises `LocalClusterError`."""
    build.build_all(TOOLSETS[target])
    with build.hold_build_lock("Go"):
        go_install.ensure_go(build.get_cache_dir())  # The concurrent downloads need Go.
    with ThreadPoolExecutor(len(DOWNLOADS)) as threads:
        for future in [threads.submit(download) for download in DOWNLOADS]:
            future.result()
    if target in IMAGE_TARGETS:
        print("building the product's image, unless it exists: about a minute", flush=True)
        product_image.ensure_archive()


if __name__ == "__main__":
    try:
        prepare_dependencies(sys.argv[1])
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
