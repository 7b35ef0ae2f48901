"""Archives that hold many images or videos in one file. Members are listed first, and later read without unpacking."""
