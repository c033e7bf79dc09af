"""The command line: one file a command, loaded when it is called.

`main` finds the command and turns errors into one line and an exit code; nothing below it exits or prints a traceback.
"""
