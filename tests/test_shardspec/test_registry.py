"""Tables of names: found on first use, with an error that says what to install or what is misspelt."""

import sys
from pathlib import Path

import pytest

from packer.steps.chain import STEPS
from shardspec.codecs import CODECS
from shardspec.errors import MissingDependencyError, UsageError
from shardspec.formats import FORMATS, get_format
from shardspec.registry import ImportTarget, import_target, resolve

TABLE = {
    "here": ImportTarget("json:dumps"),
    "nowhere": ImportTarget("json:nothing"),
    "uninstalled": ImportTarget("support_needs_a_library:name", "faces"),
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with modules of a test's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_a_registered_name_resolves_to_its_entry() -> None:
    assert resolve("thing", "here", TABLE) is import_target("json:dumps", what="x")


def test_an_unknown_name_is_reported_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="unknown thing 'her': expected one of here, nowhere, uninstalled"):
        resolve("thing", "her", TABLE)


def test_a_missing_library_is_reported_with_the_extra_that_brings_it(modules: Path) -> None:
    (modules / "support_needs_a_library.py").write_text("import a_library_that_nobody_has.inside\n")
    with pytest.raises(
        MissingDependencyError,
        match=r"thing 'uninstalled' needs the library 'a_library_that_nobody_has.*pip install \"facepack\[faces\]\"",
    ):
        resolve("thing", "uninstalled", TABLE)
    with pytest.raises(MissingDependencyError, match="install 'a_library_that_nobody_has'"):
        import_target("support_needs_a_library:name", what="step 'x'")


def test_a_misspelt_target_is_reported(modules: Path) -> None:
    (modules / "support_steps.py").write_text("def step(samples):\n    yield from samples\n")
    assert callable(import_target("support_steps:step", what="step"))
    with pytest.raises(UsageError, match="module 'support_steps' has no attribute 'stop'"):
        import_target("support_steps:stop", what="step")
    with pytest.raises(UsageError, match="there is no module 'support_stops'"):
        import_target("support_stops:step", what="step")
    for target in ("support_steps", "support_steps:", ":step", ""):
        with pytest.raises(UsageError, match="expected 'module:name'"):
            import_target(target, what="step")
    for target in (
        "support_steps.py:step",
        "./support_steps.py:step",
        "../support_steps:step",
        "/a/support_steps:step",
    ):
        with pytest.raises(
            UsageError, match="expected a module such as 'support_steps:step', whose folder is on the Py"
        ):
            import_target(target, what="step")


def test_an_error_inside_a_module_is_not_hidden(modules: Path) -> None:
    (modules / "support_broken.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        import_target("support_broken:step", what="step")


@pytest.mark.parametrize("table", [CODECS, STEPS], ids=["codecs", "steps"])
def test_every_entry_of_the_registry_resolves(table: dict[str, ImportTarget]) -> None:
    for name in table:
        assert resolve("entry", name, table) is not None


def test_formats_are_found_by_name() -> None:
    assert list(FORMATS) == sorted(FORMATS)
    for name, format in FORMATS.items():
        assert get_format(name) is format
    with pytest.raises(UsageError, match=f"unknown format 'zip': expected one of {', '.join(FORMATS)}"):
        get_format("zip")
    suffixes = [format.suffix for format in FORMATS.values()]
    assert len(set(suffixes)) == len(suffixes)
