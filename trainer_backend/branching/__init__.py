"""Short branches from a checkpoint at other effective batches: tried over the same samples."""
