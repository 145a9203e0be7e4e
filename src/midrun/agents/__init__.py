"""What a user writes: agents, their tools, and what tools may do."""
