"""From a script, its options and a strategy to a checked request: nothing is started here."""
