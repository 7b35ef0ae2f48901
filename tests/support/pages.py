"""Pages as a browser would parse them, and a dataset whose every text is hostile."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from shardspec.manifest import Manifest
from support.datasets import face_schema, write_dataset
from support.packed_files import face_columns

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "</script><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% for %}",
    "../../etc/passwd\0\u202e",
    "\udcff not utf-8",
)

_VOID = {"br", "img", "input", "link", "meta", "path", "rect"}


@dataclass
class Element:
    """An element with its attributes and the text in it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    children: "list[Element]" = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        """Its classes."""
        return self.attributes.get("class", "").split()


class Page(HTMLParser):
    """All elements of a page, in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if self._open:
            self._open[-1].children.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            while self._open and self._open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def find(self, tag: str, class_: str = "") -> list[Element]:
        """The elements of a tag, and of a class."""
        return [e for e in self.elements if e.tag == tag and (not class_ or class_ in e.classes)]

    @property
    def text(self) -> str:
        """All text outside of scripts and styles."""
        return next(e for e in self.elements if e.tag == "body").text


def descendants(element: Element) -> list[Element]:
    """All elements in an element."""
    return [e for child in element.children for e in (child, *descendants(child))]


def write_hostile(root: Path, rows: int = 12, *, codec: str | None = "jpeg") -> Manifest:
    """Faces with keys and sources that no page must take for anything but text."""
    columns = face_columns(rows, codec=codec)
    columns["key"] = [f"{HOSTILE[row % len(HOSTILE)]} {row}" for row in range(rows)]
    columns["source"] = [HOSTILE[row % len(HOSTILE)] for row in range(rows)]
    columns["landmarks_valid"][:] = True
    return write_dataset(root, "npy", face_schema(32, codec), columns)


def assert_harmless(page: Page) -> None:
    """Nothing of the hostile texts became an element, or an attribute that runs."""
    tags = {e.tag for e in page.elements}
    assert not tags & {"iframe", "object", "embed", "base"}
    for element in page.elements:
        assert not [name for name in element.attributes if name.startswith("on")], element.attributes
        assert "javascript:" not in element.attributes.get("href", "")
        assert element.attributes.get("src", "") != "x"
        assert not (element.tag == "script" and "alert(1)" in element.text)
