"""`commlib report`: a pipeline of commands, whose documents stay in a folder, and the pages of them."""
