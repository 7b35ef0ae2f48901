"""The copy of a packed dataset, whole or in part, to another place."""
