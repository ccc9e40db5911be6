"""A run's journal, handed on to another machine over a line of ssh's. No torch."""
