"""Which micro-batch and N fit a wanted effective batch, and which of them is fastest: by measuring."""
