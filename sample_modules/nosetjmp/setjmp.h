/* The libc has no setjmp. Lua is built with an LUAI_TRY and LUAI_THROW that need none, but includes the header. */
