"""`commlib tune`: options, one run, what it prints and draws."""
