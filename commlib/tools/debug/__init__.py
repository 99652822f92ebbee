"""What `commlib debug` shows of a job, and writes for other tools."""
