"""What must be true after a schedule: of the journal, the world, and every reply given."""
