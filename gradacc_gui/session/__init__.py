"""Runs as a person handles them: the interpreter, the start, the stop, the list. No Qt, no torch."""
