"""Pages to look at packed datasets: one file to keep, or a server on this machine.

Everything shown may come from hostile input, so templates escape every value, and no text becomes code. Pages load
nothing from other hosts.
"""
