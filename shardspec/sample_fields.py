"""The fields that the pack stage writes itself: their order in the schema, and which names a source must leave alone."""

FIELD_ORDER = (
    "key",
    "source",
    "label",
    "frame",
    "time",
    "track",
    "image",
    "landmarks",
    "landmarks_valid",
    "hull",
    "regions",
    "box",
    "score",
    "matrix",
)
"""Fields that the pack stage writes come first, in this order; a user's own follow by name."""

RESERVED = frozenset(FIELD_ORDER) - {"label"}
"""Fields that the pack stage writes itself, which a column must not be called."""
