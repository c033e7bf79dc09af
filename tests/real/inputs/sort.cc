// Templates and virtual calls, for a compiler to chew on.
template <class T, int N> struct Array {
    T v[N];
    T &operator[](int i) { return v[i]; }
    template <class F> void sort(F less) {
        for (int i = 1; i < N; i++)
            for (int j = i; j > 0 && less(v[j], v[j - 1]); j--) { T t = v[j]; v[j] = v[j - 1]; v[j - 1] = t; }
    }
};
struct Shape { virtual int area() const = 0; };
struct Square : Shape { int a; constexpr Square(int n = 0) : a(n) {} int area() const override { return a * a; } };
struct Box : Shape { int a, b; constexpr Box(int n, int m) : a(n), b(m) {} int area() const override { return a * b; } };
template <int N> struct Fib { enum { value = Fib<N - 1>::value + Fib<N - 2>::value }; };
template <> struct Fib<0> { enum { value = 0 }; };
template <> struct Fib<1> { enum { value = 1 }; };
volatile int out;
int main() {
    Array<int, 20> numbers; Array<long, 12> longs;
    unsigned seed = 7;
    for (int i = 0; i < 20; i++) numbers[i] = (seed = seed * 25173 + 13849) >> 2;
    for (int i = 0; i < 12; i++) longs[i] = numbers[i] * 3L;
    numbers.sort([](int a, int b) { return a < b; });
    longs.sort([](long a, long b) { return a > b; });
    Square s(5); Box b(3, 4);
    const Shape *shapes[] = {&s, &b};
    for (auto shape : shapes) out = out + shape->area();
    return numbers[0] + (int) longs[3] + Fib<12>::value + out;
}
