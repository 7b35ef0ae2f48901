"""The errors of decoding. As item errors they become the reason of a reject; as value errors they fit any other caller."""

from shardspec.errors import ItemError


class PictureError(ItemError, ValueError):
    """Bytes that do not decode to a picture. The message says what was expected and what was found."""


class VideoError(ItemError, ValueError):
    """A file that no video frame can be read from. The message says what was expected and what was found."""
