"""Programs that nobody here wrote: compilers, interpreters, solvers and tools as their authors publish them."""
