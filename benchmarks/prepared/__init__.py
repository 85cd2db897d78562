"""Preparing datasets, and loading what is prepared, beside Megatron Energon."""
