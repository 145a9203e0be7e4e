"""Entries as bytes and back; `journal` has the format, `strict` guards what goes in."""
