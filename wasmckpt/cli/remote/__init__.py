"""Commands for an agent: ``wasmckpt --agent URL COMMAND``. A file for each kind; `table` has their names."""
