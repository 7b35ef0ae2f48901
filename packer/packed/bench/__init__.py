"""Raw against packed, measured on the user's own data."""
