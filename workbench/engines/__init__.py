"""Beyond one machine: a `Job` as the native file of an engine, and what each engine refuses."""
