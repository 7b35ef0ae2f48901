"""The same things in two long lists."""

from packer.workspace.hashing import TextSet, digest


def test_a_set_knows_its_texts_and_no_others() -> None:
    zero = next(text for text in map(str, range(10_000)) if digest(text.encode()).endswith(b"\0"))
    texts = [zero, "", "a", "a\0", "b\udcff.jpg", "ä", "a"]
    found = TextSet(texts)
    assert len(found) == 6
    assert all(text in found for text in texts)
    assert not any(text in found for text in ("A", "b\udcfe.jpg", "b", "a\0\0", zero + "0"))
    assert "" not in TextSet(())
    assert len(TextSet(())) == 0
