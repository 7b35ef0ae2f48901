"""`packer compute`: columns that functions compute from the samples of a dataset."""
