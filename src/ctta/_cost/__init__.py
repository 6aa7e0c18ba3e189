"""Ways to the same numbers in less time or memory. Private."""
