"""Kernels over lines of JSON: validate, parse and write them as bytes."""
