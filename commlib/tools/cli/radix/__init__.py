"""`commlib radix`: traces of requests, and what each policy of eviction makes of them."""
