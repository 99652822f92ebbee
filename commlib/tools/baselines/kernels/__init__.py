"""The kernels that `commlib bench` measures: each has a module, with the libraries it is next to."""
