"""Recipes from what people have: configurations of other programs, with an account of every key.

`programs` reads a file; it loads the tables of all programs and YAML's reader, so the window does that late.
"""
