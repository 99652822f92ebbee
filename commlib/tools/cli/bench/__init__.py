"""`commlib bench`: one module for each step, from options to pictures."""
