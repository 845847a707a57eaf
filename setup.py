"""The parts of the package's metadata that depend on where its repository is published.

FOREBAY_REPOSITORY is the repository's address, set by whoever publishes a release
(`make wheel REPOSITORY=…`). With it, the README's links lead there, to the files of this version; without
it they are left out, since they lead nowhere outside a clone. What is not a release has no tag: its links
lead to the newest files.
"""

import os
import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
ADDRESS = os.environ.get("FOREBAY_REPOSITORY", "").rstrip("/")
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def version() -> str:
    text = (ROOT / "src/forebay/__init__.py").read_text()
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found
    return found[1]


def published_at() -> str:
    """The tag of this release."""
    return "HEAD" if ".dev" in version() else f"v{version()}"


def linked(link: re.Match[str]) -> str:
    is_picture, text, path = link.groups()
    if not ADDRESS:
        return "" if is_picture else text
    kind = "raw" if is_picture else "blob"
    return f"{is_picture}[{text}]({ADDRESS}/{kind}/{published_at()}/{path})"


def urls() -> dict[str, str]:
    if not ADDRESS:
        return {}
    here = f"{ADDRESS}/blob/{published_at()}"
    return {
        "Repository": ADDRESS,
        "Issues": f"{ADDRESS}/issues",
        "Documentation": f"{here}/README.md",
        "Changelog": f"{here}/CHANGELOG.md",
    }


setup(
    long_description=LINK.sub(linked, (ROOT / "README.md").read_text()),
    long_description_content_type="text/markdown",
    project_urls=urls(),
)
