"""`commlib profile`: the kernels of commlib.peers.kernels, and the radix cache, beside who makes the same calls."""
