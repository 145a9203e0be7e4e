"""Engines: what sees to it that drivers run: `local` here, `temporal` wherever it says."""
