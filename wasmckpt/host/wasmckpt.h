/* wasmckpt.h: what a C program may say to wasmckpt, which freezes it and lets it go on elsewhere. Using it is never
 * needed: every program can be frozen. docs/guest-api.md has the same for other languages.
 *
 *     clang --target=wasm32-wasi -I "$(python -c 'import wasmckpt; print(wasmckpt.header_path())')" program.c
 *
 * WebAssembly has no weak imports, so a program that is built like this needs wasmckpt to be loaded at all. Two ways out:
 *
 *   -DWASMCKPT_OPTIONAL   the calls go through WASI's fd_advise with a descriptor number that cannot exist: wasmckpt
 *                         takes the call, every other runtime answers EBADF, and the program goes on as if nobody had
 *                         wanted a checkpoint. One binary for all runtimes that have WASI preview 1.
 *   -DWASMCKPT_NONE       the calls are empty (as they are where the target is not WebAssembly).
 */
#ifndef WASMCKPT_H
#define WASMCKPT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(WASMCKPT_NONE) || !defined(__wasm__)

static inline int wasmckpt_present(void) { return 0; }
static inline int wasmckpt_checkpoint_here(void) { return 0; }
static inline int wasmckpt_lives(void) { return 0; }
static inline int wasmckpt_discard(const void *start, size_t length) { (void)start, (void)length; return 0; }
static inline int wasmckpt_keep(const void *start, size_t length) { (void)start, (void)length; return 0; }

#else

#ifdef WASMCKPT_OPTIONAL

__attribute__((import_module("wasi_snapshot_preview1"), import_name("fd_advise")))
int32_t wasmckpt_fd_advise(int32_t descriptor, int64_t start, int64_t length, int32_t advice);

static inline int32_t wasmckpt_call(int32_t which, const void *start, size_t length) {
    return wasmckpt_fd_advise(0x77634B50, (int64_t)(uintptr_t)start, (int64_t)length, which);
}
#define WASMCKPT_EBADF 8 /* "no such descriptor": wasmckpt is not there */
static inline int wasmckpt_present(void) { return wasmckpt_call(2, NULL, 0) != WASMCKPT_EBADF; }

#else

__attribute__((import_module("wasmckpt"), import_name("checkpoint_here"))) int32_t wasmckpt_import_checkpoint_here(void);
__attribute__((import_module("wasmckpt"), import_name("lives"))) int32_t wasmckpt_import_lives(void);
__attribute__((import_module("wasmckpt"), import_name("discard")))
int32_t wasmckpt_import_discard(const void *start, size_t length);
__attribute__((import_module("wasmckpt"), import_name("keep")))
int32_t wasmckpt_import_keep(const void *start, size_t length);

static inline int32_t wasmckpt_call(int32_t which, const void *start, size_t length) {
    switch (which) {
    case 0: return wasmckpt_import_checkpoint_here();
    case 1: return wasmckpt_import_lives();
    case 2: return wasmckpt_import_discard(start, length);
    default: return wasmckpt_import_keep(start, length);
    }
}
/* Whether wasmckpt runs this program. */
static inline int wasmckpt_present(void) { return 1; }

#endif

/* A good moment for a checkpoint. Waits until it is taken, if whoever runs the program wants one.
 *  0: the program goes on in the same life, with or without a checkpoint taken.
 *  1: the program goes on in a restored life, from the checkpoint that was taken here.
 * -1: a checkpoint was wanted and could not be taken (a full disk, say); the program goes on. */
static inline int wasmckpt_checkpoint_here(void) {
    return wasmckpt_present() ? wasmckpt_call(0, NULL, 0) : 0;
}

/* How often this program was restored from a checkpoint or moved, up to now. */
static inline int wasmckpt_lives(void) {
    return wasmckpt_present() ? wasmckpt_call(1, NULL, 0) : 0;
}

/* The memory from start on, length bytes, is not worth keeping (a cache, a buffer that can be filled again). Images
 * leave out the whole 4 KiB pages inside, and after a restore or a move those pages READ AS ZERO; the rest of the range,
 * and everything in the present life, stays as it is. It holds until wasmckpt_keep, over restores too.
 *
 * A program may be frozen and moved at any loop and any call, not only at wasmckpt_checkpoint_here. So use what lies
 * there like this: make zero mean "not there", and if wasmckpt_lives() has changed since you looked, look again.
 * Never put a malloc heap, a stack or a lock there.
 *
 * Both give 0, or 21 (EFAULT) for a range outside the memory. */
static inline int wasmckpt_discard(const void *start, size_t length) {
    return wasmckpt_present() ? wasmckpt_call(2, start, length) : 0;
}

/* Takes wasmckpt_discard back, for all pages that the range touches. */
static inline int wasmckpt_keep(const void *start, size_t length) {
    return wasmckpt_present() ? wasmckpt_call(3, start, length) : 0;
}

#endif

#ifdef __cplusplus
}
#endif

#endif
