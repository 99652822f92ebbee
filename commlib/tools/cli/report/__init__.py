"""`commlib report`: a pipeline of commands, whose documents are kept, and pages made of them."""
