"""Archives of many pictures or videos in a file: each kind lists its members, which are read in place."""
