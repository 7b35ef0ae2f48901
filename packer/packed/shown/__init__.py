"""A packed dataset as people look at it: small fields of all rows in bounded memory, selections, pictures, originals."""
