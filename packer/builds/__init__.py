"""From raw items to a dataset: the plan, the work on one item, parts, reports."""
