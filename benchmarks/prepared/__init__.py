"""Benchmarks of preparing datasets and loading prepared ones, compared with Megatron Energon."""
