"""Where journals are kept: `memory`, `sqlite`; `urls` opens one by its address."""
