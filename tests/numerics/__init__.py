"""Gradients against references in fp64: what the engine computes, and what the certificate says of it."""
