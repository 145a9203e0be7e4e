"""What must be true after a schedule: of the journal, of the world, of every reply ever given."""
