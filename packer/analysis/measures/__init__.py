"""Built-in functions of `packer compute`, one file each.

Each takes fields of a batch by the names of its parameters, and returns a dict of columns. `VERSION` of a function's file
changes whenever its values do.
"""
