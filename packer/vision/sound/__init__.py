"""Read sound files, and write sound as a file. Nothing is imported here: PyAV loads with the modules that need it."""
