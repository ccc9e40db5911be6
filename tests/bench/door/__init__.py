"""What the door reaches, measured: `python -m tests.bench.door [NAME …]`.

Each module here but this package's own measures one thing in a process of its own and prints one JSON
object as its last line; all of them are merged into the last line that is printed. Its text says what its
keys mean. Sizes are those of the goals; nothing is estimated.
"""
