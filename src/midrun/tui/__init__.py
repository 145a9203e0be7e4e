"""The terminal: what happens to a run in words, and a control bar that stays below it."""
