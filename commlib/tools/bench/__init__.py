"""What `commlib bench` measures and keeps: a job, its figures on live ranks, the document, two of them compared."""
