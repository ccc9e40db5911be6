"""Watches a run for faults and drift, window by window, in pure Python: no torch, no numpy."""
