"""`commlib profile`: kernels and the radix cache, next to what others have for the same calls."""
