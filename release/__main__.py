"""Command line `python -m release`, which the Makefile calls: releases a version, or builds a release's files."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from release.artifacts import CHECKSUMS_FILE, Options
from release.errors import ReleaseError
from release.process import build_files, release
from release.versions import ROOT

WITHOUT_IMAGE = "image"


@click.command()
@click.argument("version", default="")
@click.option("--image", default="", help="Repository of the image, including its registry.")
@click.option("--url", default="", help="URL from which users will download the files; krew's manifest needs it.")
@click.option("--without", type=click.Choice(["", WITHOUT_IMAGE]), default="", help="Part of the release to omit.")
@click.option("--files-only", is_flag=True, help="Build the files of the current commit, without a tag.")
def main(version: str, image: str, url: str, without: str, files_only: bool) -> None:
    """Release VERSION: commit the version, build the release's files into build/release/VERSION, and create its tag."""
    options = Options(image, url, without != WITHOUT_IMAGE)
    try:
        if not version:
            raise ReleaseError("VERSION is not set: name the version to release: make release VERSION=1.2.3")
        directory = (build_files if files_only else release)(ROOT, version, options)
    except ReleaseError as error:
        raise SystemExit(f"error: {error}") from None
    print_summary(directory, version, options, files_only)


def print_summary(directory: Path, version: str, options: Options, files_only: bool) -> None:
    """Print the built files, and the commands that publish the release."""
    print(f"built in {directory.relative_to(ROOT)}:")
    print("".join(f"  {line.split()[1]}\n" for line in (directory / CHECKSUMS_FILE).read_text().splitlines()), end="")
    if not options.image:
        print("The image has no registry in its name: set IMAGE=registry.example/name to publish the release.")
    if files_only:
        return
    commands = [["git", "push", "origin", "HEAD", f"v{version}"]]
    if options.image and options.has_image:
        commands.append(["make", "container-push", f"IMAGE={options.image}", f"VERSION={version}"])
    print(f"tagged v{version}. To publish the release, run:")
    print("".join(f"  {shlex.join(command)}\n" for command in commands), end="")


if __name__ == "__main__":
    main()
