"""Fill templates. Every value is escaped, except markup from this package."""

import base64
import hashlib
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

POLICY = (
    "default-src 'none'; img-src 'self' data:; media-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy of served pages: no content from other hosts, no inline scripts."""


@cache
def templates() -> Environment:
    """Load the templates of this package."""
    return Environment(
        loader=PackageLoader("packer.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def static(name: str) -> bytes:
    """Read a file of this package that is sent or embedded unchanged."""
    return files("packer.page").joinpath("static", name).read_bytes()


def render(template: str, **values: Any) -> str:
    """Fill a template."""
    return templates().get_template(template).render(version=version("facepack"), **values)


def inline(name: str) -> tuple[Markup, str]:
    """Return a static file as text to embed, and the hash by which the policy of the page allows it."""
    text = static(name).decode()
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"sha256-{digest}"  # noqa: S704 -- a file of this package
