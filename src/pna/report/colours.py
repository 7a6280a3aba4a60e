"""Colours and widths of figures; matplotlib is not needed here."""

# Blue against grey, and a sign beside every colour: legible without colour vision.
APART = "#0b5fa5"
ALIKE = "#e9ebee"
INK = "#22262b"
FAINT = "#59616b"
OTHER = "#7c8794"  # models that are not ours
SECOND = "#b3530a"  # the second of two groups

WIDE, NARROW = 8.6, 5.2  # inches of a figure with several columns, and with one
