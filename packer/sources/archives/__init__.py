"""Archives of many images or videos in one file. Members are listed first and read in place later."""
