"""Write the address of the repository where a package index and the site need it: ``python docs/set_address.py URL``.

The sources name no address, so that forks and mirrors need no change. The workflows that publish a version or the site
run this in their checkout. Links of the README become absolute, since a package index shows it without the repository;
the package gets project URLs, and the site a link to the repository.
"""

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LINK = re.compile(r"(!?\[[^\]]*\])\((?!https?://|#)([^)\s]+)\)")


def absolute(text: str, address: str) -> str:
    """Return a page at the top of the repository with absolute links."""

    def point(match: re.Match[str]) -> str:
        kind = "raw" if match[1].startswith("!") else "blob"
        return f"{match[1]}({address}/{kind}/HEAD/{match[2]})"

    return LINK.sub(point, text)


def set_address(root: Path, address: str) -> None:
    """Change README, project metadata and configuration of the site below `root`."""
    address = address.rstrip("/")
    readme, project, site = root / "README.md", root / "pyproject.toml", root / "zensical.toml"
    readme.write_text(absolute(readme.read_text("utf-8"), address), "utf-8")
    urls = {"Repository": address, "Issues": f"{address}/issues", "Changelog": f"{address}/blob/HEAD/CHANGELOG.md"}
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    text = project.read_text("utf-8")
    project.write_text(text.replace("[project.scripts]", f"[project.urls]\n{lines}\n[project.scripts]", 1), "utf-8")
    text = site.read_text("utf-8")
    site.write_text(text.replace("docs_dir = ", f'repo_url = "{address}"\ndocs_dir = ', 1), "utf-8")


if __name__ == "__main__":
    set_address(REPOSITORY, sys.argv[1])
