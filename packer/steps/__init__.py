"""The built-in stages of the pack pipeline. Each module has ``make(recipe)``, which returns the step."""
