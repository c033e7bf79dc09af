/* Wren, interpreting a script of its own: recursion, objects on a collected heap, maps and strings. Argument: how much. */
#include "common.h"
#include "wren.h"
#include <stdio.h>

static const char script[] =
    "class Fib { static get(n) { n < 2 ? n : get(n - 1) + get(n - 2) } }\n"
    "class Tree {\n"
    "  construct new(item, depth) {\n"
    "    _item = item\n"
    "    if (depth > 0) {\n"
    "      _left = Tree.new(item * 2 - 1, depth - 1)\n"
    "      _right = Tree.new(item * 2, depth - 1)\n"
    "    }\n"
    "  }\n"
    "  check { _left == null ? _item : _item + _left.check - _right.check }\n"
    "}\n"
    "System.print(Fib.get(Work))\n"
    "for (i in 1..Work) System.print(Tree.new(i, Work - 14).check)\n"
    "var map = {}\n"
    "for (i in 1..Work * 400) map[\"key %(i % 1000)\"] = i\n"
    "var sum = 0\n"
    "for (v in map.values) sum = sum + v\n"
    "System.print(sum)\n";

static void written(WrenVM *vm, const char *text) {
    (void)vm;
    fputs(text, stdout);
}

static void failed(WrenVM *vm, WrenErrorType type, const char *module, int line, const char *message) {
    (void)vm, (void)type;
    printf("%s:%d: %s\n", module ? module : "", line, message);
}

int main(int argc, char **argv) {
    WrenConfiguration configuration;
    static char source[sizeof script + 32];
    wrenInitConfiguration(&configuration);
    configuration.writeFn = written;
    configuration.errorFn = failed;
    snprintf(source, sizeof source, "var Work = %ld\n%s", argument(argc, argv, 1, 24), script);
    return wrenInterpret(wrenNewVM(&configuration), source) == WREN_RESULT_SUCCESS ? 0 : 1;
}
