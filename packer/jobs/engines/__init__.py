"""Where units run: in this process, or in worker processes."""
