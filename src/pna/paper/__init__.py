"""The experiments of the paper, as data, and what runs them."""
