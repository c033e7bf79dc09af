/* QuickJS-ng, evaluating a script of its own. Argument: how much work. */
#include "common.h"
#include "quickjs.h"
#include <stdio.h>

static const char script[] =
    "function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n"
    "function* count(n) { for (let i = 0; i < n; i++) yield i; }\n"
    "class Point { constructor(x, y) { this.x = x; this.y = y; } plus(o) { return new Point(this.x + o.x, this.y + o.y); } }\n"
    "var n = work;\n"
    "print('fib ' + fib(14 + Math.round(Math.log2(n))));\n"
    "var m = new Map(); for (let i of count(n * 40)) m.set('k' + i % 997, (m.get('k' + i % 997) || 0) + i);\n"
    "var s = 0; for (let [k, v] of m) s = (s * 31 + v) % 1000003; print('map ' + s);\n"
    "var p = new Point(0, 0.5); for (let i = 0; i < n * 40; i++) p = p.plus(new Point(i, 0.25)); print(p.x + ' ' + p.y);\n"
    "var words = ('the quick brown fox ' + 'jumps over 42 lazy dogs ').repeat(n).replace(/(\\w+) (\\w+)/g, '$2-$1');\n"
    "print(words.length + ' ' + words.split(/[ -]/).filter(w => /^[a-m]/.test(w)).length);\n"
    "var t = 0; for (let i = 0; i < n * 10; i++) try { if (i % 3) throw i; t++; } catch (e) { t += e % 7; } print('try ' + t);\n"
    "print(JSON.stringify([...count(n)].map(i => ({ i, q: i * i })).sort((a, b) => b.q % 101 - a.q % 101)).length);\n";

static JSValue print(JSContext *context, JSValueConst self, int argc, JSValueConst *argv) {
    const char *text = JS_ToCString(context, argv[0]);
    (void)self, (void)argc;
    puts(text);
    JS_FreeCString(context, text);
    return JS_UNDEFINED;
}

int main(int argc, char **argv) {
    JSRuntime *runtime = JS_NewRuntime();
    JSContext *context = JS_NewContext(runtime);
    JS_SetMaxStackSize(runtime, 0);
    JSValue global = JS_GetGlobalObject(context);
    JS_SetPropertyStr(context, global, "print", JS_NewCFunction(context, print, "print", 1));
    JS_SetPropertyStr(context, global, "work", JS_NewInt32(context, (int)argument(argc, argv, 1, 500)));
    JSValue result = JS_Eval(context, script, sizeof script - 1, "script", JS_EVAL_TYPE_GLOBAL);
    if (JS_IsException(result)) {
        JSValue error = JS_GetException(context);
        puts(JS_ToCString(context, error));
        return 1;
    }
    JS_FreeValue(context, global);
    return 0;
}
