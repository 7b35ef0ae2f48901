"""How a worker is started on another host, ended for certain, and how its end reads."""
