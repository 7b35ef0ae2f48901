"""A build shared among agents on any hosts: leases, claims, the terms."""
