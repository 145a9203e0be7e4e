"""The pure core: what a run is, what may happen to it, and what must happen next."""
