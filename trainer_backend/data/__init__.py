"""Micro-batches in a fixed order: a function of the seed alone, whatever the workers, N or the micro-batch."""
