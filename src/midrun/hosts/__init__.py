"""Hosts: what was made for other frameworks and protocols, under midrun.

Importing this imports none of their packages.
"""
