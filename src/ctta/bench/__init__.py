"""The benchmark: cells, the store of their rows, the runner, and the paper's tables."""
