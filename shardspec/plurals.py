"""Counts in words."""


def counted(count: int, noun: str) -> str:
    """``"1 item"``, ``"2 items"``: a number and what it counts, in the plural where it is not one."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
