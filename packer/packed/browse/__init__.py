"""A packed dataset for browsing: a table of its small fields, selections of its samples, images, originals."""
