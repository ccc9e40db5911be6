"""Tasks on images: segmentation and classification."""
