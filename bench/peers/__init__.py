"""The peers' comparison: the steps of other libraries, with the same model, tool and probe.

`python -m bench.peers [NAME …] [--steps N] [--markdown]` creates an environment for each peer
under `.venv-peers/`, with the versions in `requirements/`. The programs of the peers are in
`programs`. This package imports nothing, so that these environments can import it.
"""
