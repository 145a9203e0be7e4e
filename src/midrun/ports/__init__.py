"""What the shell needs from outside, as Protocols: `store` and `clock`."""
