"""From workload, tokens and limits to ranked plans, each with its reasons. Pure, like estimate."""
