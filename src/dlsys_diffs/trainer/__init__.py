"""A small training repository: it learns to read digits of 8 by 8 pixels on a CPU in a second."""
