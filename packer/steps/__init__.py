"""The built-in stages of the pack pipeline. Each file has ``make(recipe)``, which gives the step."""
