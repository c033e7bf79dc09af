"""The rewriter: a module that can spill its own frames, and functions that go on from frames.

Aim: freeze a program on runtimes that show neither a program counter nor a value stack, at next to no cost while it
runs. So the module is rewritten before it is loaded:

    neutral      before all else: no references, no imports but functions
    instrument   the whole: validate, decide, rewrite function by function, link        callgraph  what may suspend
    function     one function: polls, tests after calls, exits; thinning                flow       liveness, skip rule
    spill        helpers inside the module: polls, window, end of an unwinding          trips      loops that end
    sites        what a spilled record's number stands for                              lower      label values
    records      records to frames                                                      linker     what is added
    depth        the stack that is left, counted where the runtime has no limit         nans       canonical ones
    continuations  from frames back to running code                                     cache      on disk

Rejected, with the measured reason: a rewind mode (Asyncify: 1.7 on real programs, paid for ever); a plain load or a
global as poll on compilers (lifted out of inner loops: seconds late); storing all locals instead of the live ones
(1.29 against 1.09); one common exit for all sites of a function (1.7 on an interpreter's main loop).

Rules that hold everything together: the flag is never lowered between the first spill and the outermost return;
records come innermost first, and only the first one's call results are valid; no index of the original moves, since all
that is added stands at the end of its index space; the plan of safepoints depends on module and options, never on the
runtime; nothing here imports a runtime or knows the image.
"""
