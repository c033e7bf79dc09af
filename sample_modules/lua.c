/* The Lua interpreter. Holds: an interpreter's loop with its own stacks and garbage-collected heap, C calls between Lua
   calls, a bytecode compiler. Argument: size of the script's tasks. Without pcall and coroutines: this libc has no setjmp. */
#include "common.h"
#include "lauxlib.h"
#include "lua.h"
#include "lualib.h"
#include <stdio.h>

static const char script[] =
    "local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end\n"
    "assert(fib(15) == 610)\n"
    "print('fib', fib(math.min(10 + size // 1000, size > 1000000 and 40 or 28)))\n"
    "local list, seed = {}, 42\n"
    "for i = 1, size do seed = (seed * 1103515245 + 12345) % 2147483648; list[i] = seed end\n"
    "table.sort(list, function(a, b) return a > b end)\n"
    "for i = 2, #list do assert(list[i - 1] >= list[i]) end\n"
    "print('sort', list[1], list[#list])\n"
    "local words, text = {}, {}\n"
    "for i = 1, size // 4 do text[i] = string.format('%x', list[i] % 4096) end\n"
    "for word in table.concat(text, ' '):gmatch('%w+') do words[word] = (words[word] or 0) + 1 end\n"
    "local best, most = '', 0\n"
    "for word, n in pairs(words) do if n > most or n == most and word < best then best, most = word, n end end\n"
    "print('words', best, most)\n"
    "local point = setmetatable({}, {__index = function(_, k) return #k end, __call = function(_, x) return x * 2.5 end})\n"
    "print('meta', point.abc, point(3), (('abc'):rep(3, '-'):gsub('b', string.upper)))\n"
    "local sum = 0.0\n"
    "for i = 1, size do sum = sum + math.sin(i) / i end\n"
    "print(string.format('sum %.12f', sum))\n";

int main(int argc, char **argv) {
    lua_State *L = luaL_newstate();
    if (!L) return 2;
    luaL_requiref(L, "_G", luaopen_base, 1);
    luaL_requiref(L, "string", luaopen_string, 1);
    luaL_requiref(L, "table", luaopen_table, 1);
    luaL_requiref(L, "math", luaopen_math, 1);
    lua_settop(L, 0);
    lua_pushinteger(L, argument(argc, argv, 1, 15000));
    lua_setglobal(L, "size");
    if (luaL_loadstring(L, script) != LUA_OK) return puts(lua_tostring(L, -1)), 1;
    lua_call(L, 0, 0);
    lua_close(L);
    return 0;
}
