"""What the shell needs from outside, as Protocols: a store, a model, a clock, a relay."""
