"""Benchmarks: `python -m tests.bench.NAME`; the last line is one JSON object. None runs in the suite."""
