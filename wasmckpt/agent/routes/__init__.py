"""What can be asked for over HTTP: a file for each kind of thing, thin handlers, no decisions."""
