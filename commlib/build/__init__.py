"""Code that is compiled where it runs: GPU kernels and the C++ of plugins, in one cache; and Python files by path."""
