"""What can go wrong, tried: `python -m tests.bench.faults [NAME …]`.

Each module here but those whose name begins with an underscore tries one kind of thing in a process of its
own and prints one JSON object as its last line; all of them are merged into the last line that is printed,
where counts of one key are added up. A module's text says what its keys mean.
"""
