"""Where journals are kept: `memory`, `sqlite`, `postgres`; `urls` opens one by its address."""
