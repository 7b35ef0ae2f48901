"""Where raw items come from. Each source lists its items; nothing is decoded here."""
