"""Dolma's loggers."""

from logging import getLogger as get_logger

__all__ = ["get_logger"]
