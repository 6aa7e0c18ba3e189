"""EcoTTA: the method, its meta networks, and their warm-up."""

from ctta.methods.ecotta.ecotta import Ecotta

__all__ = ["Ecotta"]
