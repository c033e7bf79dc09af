/* An interpreter in the guest. Holds: one big loop over a br_table, the inner machine's stack, variables and program
   counter. Argument: upper bound of the inner program. Compares with the same sum computed in C. */
#include "common.h"
#include <stdio.h>

enum op {
    PUSH, LOAD, STORE, ADD, SUB, MUL, DIVIDE, REMAINDER, AND, OR, XOR, SHIFT_LEFT, SHIFT_RIGHT, EQUAL, LESS, NOT, DUP, SWAP,
    DROP, JUMP, JUMP_IF, JUMP_UNLESS, CALL, RETURN, PRINT, HALT
};
enum variable { LIMIT, I, X, STEPS, BITS, VARIABLES };

/* The inner program: for (i = 1; i <= limit; i++) count the Collatz steps of i; then the set bits of the sum, by a
   subroutine. A jump forward is emitted with 0 and patched where its target is. */
static int code[128], length;
static int emit(int word) { return code[length] = word, length++; }
static int emit2(int op, int operand) { emit(op); return emit(operand); }

static void assemble(void) {
    int next_i, next_x, next_bit, to_done_i, to_done_x, to_even, to_count, to_population, to_no_bits;
    emit2(PUSH, 1), emit2(STORE, I);
    next_i = length;
    emit2(LOAD, LIMIT), emit2(LOAD, I), emit(LESS), to_done_i = emit2(JUMP_IF, 0);
    emit2(LOAD, I), emit2(STORE, X);
    next_x = length;
    emit2(LOAD, X), emit2(PUSH, 1), emit(EQUAL), to_done_x = emit2(JUMP_IF, 0);
    emit2(LOAD, X), emit2(PUSH, 1), emit(AND), to_even = emit2(JUMP_UNLESS, 0);
    emit2(LOAD, X), emit(DUP), emit2(PUSH, 1), emit(SHIFT_LEFT), emit(ADD), emit2(PUSH, 1), emit(ADD), emit2(STORE, X);
    to_count = emit2(JUMP, 0);
    code[to_even] = length;
    emit2(LOAD, X), emit2(PUSH, 1), emit(SHIFT_RIGHT), emit2(STORE, X);
    code[to_count] = length;
    emit2(LOAD, STEPS), emit2(PUSH, 1), emit(ADD), emit2(STORE, STEPS), emit2(JUMP, next_x);
    code[to_done_x] = length;
    emit2(LOAD, I), emit2(PUSH, 1), emit(ADD), emit2(STORE, I), emit2(JUMP, next_i);
    code[to_done_i] = length;
    emit2(LOAD, STEPS), emit(PRINT), to_population = emit2(CALL, 0), emit2(LOAD, BITS), emit(PRINT), emit(HALT);
    code[to_population] = length;
    emit2(LOAD, STEPS), emit2(STORE, X);
    next_bit = length;
    emit2(LOAD, X), emit(NOT), to_no_bits = emit2(JUMP_IF, 0);
    emit2(LOAD, X), emit2(PUSH, 2), emit(REMAINDER), emit2(LOAD, BITS), emit(ADD), emit2(STORE, BITS);
    emit2(LOAD, X), emit2(PUSH, 2), emit(DIVIDE), emit2(STORE, X), emit2(JUMP, next_bit);
    code[to_no_bits] = length;
    emit(RETURN);
}

static uint32_t interpret(uint32_t *variable, uint64_t *executed) {
    uint32_t stack[64], *top = stack, last = 0;
    int returns[16], depth = 0;
    uint64_t turns = 0;
    for (const int *at = code;; turns++) {
        switch (*at++) {
        case PUSH: *top++ = (uint32_t)*at++; break;
        case LOAD: *top++ = variable[*at++]; break;
        case STORE: variable[*at++] = *--top; break;
        case ADD: top--, top[-1] += *top; break;
        case SUB: top--, top[-1] -= *top; break;
        case MUL: top--, top[-1] *= *top; break;
        case DIVIDE: top--, top[-1] /= *top; break;
        case REMAINDER: top--, top[-1] %= *top; break;
        case AND: top--, top[-1] &= *top; break;
        case OR: top--, top[-1] |= *top; break;
        case XOR: top--, top[-1] ^= *top; break;
        case SHIFT_LEFT: top--, top[-1] <<= *top & 31; break;
        case SHIFT_RIGHT: top--, top[-1] >>= *top & 31; break;
        case EQUAL: top--, top[-1] = top[-1] == *top; break;
        case LESS: top--, top[-1] = top[-1] < *top; break;
        case NOT: top[-1] = !top[-1]; break;
        case DUP: *top = top[-1], top++; break;
        case SWAP: { uint32_t swap = top[-1]; top[-1] = top[-2], top[-2] = swap; break; }
        case DROP: top--; break;
        case JUMP: at = code + *at; break;
        case JUMP_IF: at = *--top ? code + *at : at + 1; break;
        case JUMP_UNLESS: at = *--top ? at + 1 : code + *at; break;
        case CALL: returns[depth++] = (int)(at + 1 - code), at = code + *at; break;
        case RETURN: at = code + returns[--depth]; break;
        case PRINT: last = *--top, printf("%u\n", last); break;
        case HALT: *executed = turns; return last;
        default: exit(3);
        }
    }
}

int main(int argc, char **argv) {
    uint32_t limit = (uint32_t)argument(argc, argv, 1, 30000), variable[VARIABLES] = {0}, steps = 0, bits = 0;
    uint64_t executed;
    variable[LIMIT] = limit;
    assemble();
    uint32_t result = interpret(variable, &executed);
    for (uint32_t i = 1; i <= limit; i++)
        for (uint32_t x = i; x != 1; x = x % 2 ? 3 * x + 1 : x / 2) steps++;
    for (uint32_t x = steps; x; x /= 2) bits += x % 2;
    printf("%llu instructions\n", (unsigned long long)executed);
    return variable[STEPS] == steps && result == bits ? 0 : 1;
}
