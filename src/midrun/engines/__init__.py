"""Engines: what sees to it that drivers run. `local` does so in this process."""
