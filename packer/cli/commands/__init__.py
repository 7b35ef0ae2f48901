"""The commands that do more than call their function and print the result, one file each.

`add_arguments` adds the arguments of a command to its parser. `run` runs the command and returns the exit status. Names
of arguments are those of the function's parameters.
"""
