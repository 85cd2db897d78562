"""Benchmarks of VLA Foundry's tensors and robotics batches."""
