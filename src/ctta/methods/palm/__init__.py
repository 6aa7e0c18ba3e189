"""PALM: the method, its learning-rate schemes, and what a step may cost."""

from ctta.methods.palm.palm import Palm

__all__ = ["Palm"]
