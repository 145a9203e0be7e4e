"""What each entry means for the state, by subject. `evolve` picks the arm."""
