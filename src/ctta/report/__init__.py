"""What runs come to, for people: figures, tables, one self-contained page, TensorBoard.

`Report`, the value of `adapter.last`, can be imported from here too.
"""

from ctta._core.report import Report

__all__ = ["Report"]
