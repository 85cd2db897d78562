"""The measured programs, one module for Feedmill and for each peer.

The suites run each one in a fresh process, as a module from the root of the repository.
"""
