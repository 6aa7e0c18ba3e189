"""Numbers that sum up rows: means over domains, calibration."""

from ctta.metrics.calibration import expected_calibration_error
from ctta.metrics.gradual import gradual_mean, severity_means

__all__ = ["expected_calibration_error", "gradual_mean", "severity_means"]
