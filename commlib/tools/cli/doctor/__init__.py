"""`commlib doctor`: checks of what works on this machine, and the command that runs them."""
