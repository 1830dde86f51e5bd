"""An image of RabbitMQ's server from Debian's package, with the layout that the cluster operator expects."""

from __future__ import annotations

import hashlib
from pathlib import Path

from localcluster.nodes import buildah
from localcluster.nodes.buildah import Buildah
from localcluster.programs import build

IMAGE = "localhost/rabbitmq/server:local"
RABBITMQ_UID = 999
"""The user id under which the cluster operator runs the server."""
HOME_DIR = "/var/lib/rabbitmq"
# Installing starts no service, since an image build runs no init system. The Erlang cookie must differ per cluster; the
# operator provides it.
INSTALL_SCRIPT = f"""
groupadd --system --gid {RABBITMQ_UID} rabbitmq
useradd --system --uid {RABBITMQ_UID} --gid rabbitmq --home-dir {HOME_DIR} rabbitmq
apt-get -q -o APT::Sandbox::User=root update
DEBIAN_FRONTEND=noninteractive apt-get -q -y -o APT::Sandbox::User=root install --no-install-recommends rabbitmq-server
rm -rf /var/lib/apt/lists/* {HOME_DIR}/.erlang.cookie /etc/rabbitmq/rabbitmq-env.conf
mkdir -p /etc/rabbitmq/conf.d
"""
BIN_DIR = "/usr/lib/rabbitmq/bin"
"""The directory of the binaries; the wrapper scripts on PATH require the service's directories."""
ENVIRONMENT = {
    "PATH": f"{BIN_DIR}:{buildah.SEARCH_PATH}",
    "HOME": HOME_DIR,
    "LANG": "C.UTF-8",
    "RABBITMQ_LOGS": "-",
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",  # Idle schedulers must not spin.
    "RUNNING_UNDER_SYSTEMD": "true",  # makes the script exec the server, which then gets SIGTERM
}


def ensure_archive() -> Path:
    """Return the image's archive in the format of `docker save`; building a new one takes a minute."""
    digest = hashlib.sha256(f"{INSTALL_SCRIPT}{ENVIRONMENT}".encode()).hexdigest()[:12]
    return buildah.ensure_archive(build.get_cache_dir() / f"rabbitmq-{digest}.tar", _build_image)


def _build_image(buildah: Buildah) -> str:
    container = buildah.run("from", buildah.base_image).strip()
    buildah.run("run", "--network", "host", container, "--", "sh", "-ec", INSTALL_SCRIPT)
    options = [word for name, value in ENVIRONMENT.items() for word in ("--env", f"{name}={value}")]
    buildah.run("config", *options, "--user", str(RABBITMQ_UID), "--cmd", f"{BIN_DIR}/rabbitmq-server", container)
    buildah.run("commit", "--rm", container, IMAGE)
    return IMAGE
