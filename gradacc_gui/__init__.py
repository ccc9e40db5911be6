"""The window and the command line: everything a person touches; never torch."""
