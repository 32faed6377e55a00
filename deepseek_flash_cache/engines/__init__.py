"""Hosts: each engine translates a host's words into ours and holds no logic of its own."""
