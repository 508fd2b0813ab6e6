"""The command line of a script: its options, read without training, and its arguments changed."""
