"""Micro-batches in an order that the seed alone decides, whatever the workers, N or the micro-batch."""
