"""From encoded columns to values in memory, whole or cropped while decoding."""
