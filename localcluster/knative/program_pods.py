"""An add-on that runs one program in pods of a manifest: its image, its workload and its namespace have one name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.nodes import images
from localcluster.programs import build

IMAGE_NAME = "localhost/{}:local"
NONROOT_UID = 65532
"""The user of the images that Knative publishes."""
TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class ProgramPods:
    """Add-on for one program.

    Attributes:
        name: The name of the program, of its image, of its workload and of its namespace.
        toolset: The toolset that contains the program.
        manifest: The file of its objects, which uses the image `IMAGE_NAME`.
        workload: The resource of its workload, `deployment` or `daemonset`.
    """

    name: str
    toolset: build.Toolset
    manifest: Path
    workload: str = "deployment"

    def write_archives(self, directory: Path) -> list[Path]:
        """Write the program's image archive into a directory; return it."""
        directory.mkdir(parents=True)
        program = build.ensure_programs(self.toolset) / self.name
        image = images.Image(IMAGE_NAME.format(self.name), program, (f"/bin/{self.name}",), user=NONROOT_UID)
        return [images.write_image(image, directory / f"{self.name}.tar")]

    def apply(self, cluster: LocalCluster) -> None:
        """Apply the manifest; the pods start once a node that has the image exists."""
        cluster.kubectl("apply", "--server-side", "-f", self.manifest)

    def wait_until_ready(self, cluster: LocalCluster) -> None:
        """Return when the workload's pods are available."""
        limit = f"--timeout={TIMEOUT_SECONDS}s"
        cluster.kubectl("rollout", "status", self.workload, self.name, "-n", self.name, limit)
