"""One job, whatever it makes: enter or resume, run tasks, write shards, commit."""
