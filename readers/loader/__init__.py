"""Read batches with threads, which decode straight into the batch's memory."""
