"""The compiler of kernels: `translate` writes C from their Python sources, `build` compiles it to shared libraries.

``python tools/kernels/build.py`` builds the libraries of this checkout; ``setup.py`` builds those of a wheel.
"""
