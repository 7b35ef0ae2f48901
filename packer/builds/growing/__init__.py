"""Builds that go on from what is there: from a dataset, or from what a plan had finished before its source changed."""
