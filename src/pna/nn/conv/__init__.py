"""Graph convolutions, one a file."""
