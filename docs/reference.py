"""Writes the reference of the SDK and of the REST API as HTML: `python docs/reference.py DIRECTORY`.

pdoc makes the reference of the SDK from docstrings, and Swagger UI shows the REST API from openapi.json. All pages can
be opened from the file system, because they load nothing from a network.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import cast

import pdoc
from pdoc import render

from odradek_gateway import openapi
from odradek_gateway.app import create_app
from odradek_gateway.cluster_access import ClusterAccess
from odradek_gateway.rest.v2.instances import Instances
from odradek_gateway.settings import GatewaySettings

MODULES = ("odradek", "odradek.embedded")


def write_sdk(directory: Path) -> None:
    """Write the pages of the SDK. A warning of pdoc about a docstring is raised as an error."""
    render.configure(docformat="google", show_source=False, footer_text="Odradek")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*MODULES, output_directory=directory)


def write_rest(directory: Path) -> None:
    """Write the page of the REST API. It has no buttons that send requests, because there is no gateway."""
    unused = object()
    app = create_app(GatewaySettings(), cast("ClusterAccess", unused), cast("Instances", unused))
    described = json.dumps(app.openapi())
    (directory / "docs").mkdir(parents=True, exist_ok=True)
    (directory / "openapi.json").write_text(described)
    (directory / "index.html").write_text(openapi.page_of(app.title))
    for name in openapi.PAGE_FILES:
        content = openapi.page_file(name)
        if name == "start.js":
            specification = f"spec: {described},\n  supportedSubmitMethods: []".encode()
            content = content.replace(b'url: "openapi.json"', specification)
        (directory / "docs" / name).write_bytes(content)


def main() -> None:
    directory = Path(sys.argv[1])
    write_sdk(directory / "sdk")
    write_rest(directory / "rest")
    print(f"{directory}/sdk/index.html\n{directory}/rest/index.html")


if __name__ == "__main__":
    main()
