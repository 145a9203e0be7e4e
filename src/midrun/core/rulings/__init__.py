"""What each input means now, by subject. The table has spoken first."""
