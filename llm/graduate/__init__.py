"""From the toy to a cluster: what a 7B or 32B run needs, and the files that start it in verl or TRL."""
