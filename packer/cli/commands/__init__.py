"""The commands, one file each.

`add_arguments` adds the arguments of a command to its parser. `run` calls the Python function of the command, prints
the result and returns the exit status. Names of arguments are those of the function's parameters.
"""
