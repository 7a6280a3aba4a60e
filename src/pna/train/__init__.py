"""Training: populations of models, their runs on disk, and what is asked of them."""
