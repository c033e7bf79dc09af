"""The neutral module: before a module is rewritten, what an image could not hold is expressed by what it can.

Aim: a reference has no bits (nothing tells which function a funcref is), a host cannot be asked about it in a forked
copy, and a memory that is imported is not the program's own. So a module M that has references, or imports more than
functions, becomes a module N with the same behaviour that has neither; everything behind it (rewriter, continuations,
fork, window) works on N and knows nothing of this. Images speak of M only: `snapshot.terms` translates at the border.
A module that needs none of it passes untouched.

    in M                                    in N
    funcref                                 i32: 0 is null, k the k-th function of the universe U
    externref                               i32: 0 is null, n + 1 the host's handle n
    ref.null, ref.func f, ref.is_null       i32.const 0, i32.const k, i32.eqz
    a table that is read or written         an array of i32 in a memory of its own, its length in a global
    table.get, set, grow, fill, copy, init  calls of added functions; elem.drop sets a global
    call_indirect through such a table      call $resolve  call_indirect U: slot to number, number to function
    a table that is only called through     itself
    an imported memory, table, global       a defined one; a global has the value that the host gives
    return_call of an import                call  return
    exnref                                  v128: 0 is null, else tag and payload (see `exceptions`)
    throw_ref, catch_ref, catch_all_ref     a call of an added function; catch, and code that packs
    an imported tag                         a defined one

U is one added table with every function that a reference can name, in an order in which functions of one type stand
together. So where two types differ by references only, and are one in N, a range check tells them apart, and the trap
is the one of M. Rejected: an identity for each funcref beside it (a shadow stack; costs every local, and a table that
the host sees still has none), and leaving references in place for those functions that never suspend (two worlds that
meet at each call).

No index of M moves: what is added stands at the end of its index space, an imported thing keeps its index since ALL
of its kind become defined. Element segments are the exception; nothing in N names one. The added functions are
straight code and one loop of 24 turns: they are never suspended, so no image has a frame of theirs.

Code offsets differ: `offsets` has the map. A `call_indirect` through an array is two instructions, and no frame may
stand between them; a frame that waits in it stands, in M, at the one instruction.

Tail calls of imports: the host may ask for a call to be repeated, which needs a frame to repeat it from. The import has
no frame, so that of its caller may stay. One that stands behind such a call has, in M, returned: its results belong to
the frame outside of it (`Terms.returned`). Through a table, imports are told from functions by a range check, since
functions must go on as tail calls.

Limits: a table has at most `plan.MAX_SLOTS` slots; an imported global of a reference type is refused, as are exceptions
in tables, to and from the host, and as values with more than 96 bits of payload.

    plan     what has to be done       tables   the added functions     code     one function's body
    offsets  between the bodies        build    the module N            exceptions  exnref
"""
