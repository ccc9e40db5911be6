"""The tests; a package so that `python -m tests.bench.NAME` and shared helpers are found."""
