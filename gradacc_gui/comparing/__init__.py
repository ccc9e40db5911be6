"""Runs side by side: what differs between them, their curves over one another, and what came out.

compared_runs.py   data: groups of runs, what differs, results. No Qt
run_lines.py       a chart with one line a group
compare_page.py    the page
"""
