"""From a source to a plan: items, classes, tasks, and the facts by which an item is known again."""
