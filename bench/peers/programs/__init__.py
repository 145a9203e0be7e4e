"""Programs of the peers: each runs in the environment of its package, see `bench.probe`."""
