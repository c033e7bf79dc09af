"""Cases that people met who suspend, move or rewrite WebAssembly programs: as kinds, not examples."""
