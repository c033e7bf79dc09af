/* Call-backs under libc. Holds: an indirect call under libc's qsort, tree recursion with a first result waiting, heap and
   doubles together. Argument: number of values. */
#include "common.h"
#include <stdio.h>

struct node { struct node *left, *right; double key; };

static struct node *insert(struct node *tree, double key) {
    if (!tree) {
        tree = calloc(1, sizeof *tree);
        if (!tree) exit(2);
        tree->key = key;
    } else if (key < tree->key) tree->left = insert(tree->left, key);
    else tree->right = insert(tree->right, key);
    return tree;
}

static int depth(const struct node *tree) {
    if (!tree) return 0;
    int left = depth(tree->left), right = depth(tree->right);
    return 1 + (left > right ? left : right);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    long count = argument(argc, argv, 1, 2000);
    double *values = malloc((size_t)count * sizeof *values), sum = 0;
    if (!values) return 2;
    struct node *tree = NULL;
    unsigned s = 12345;
    for (long i = 0; i < count; i++) {
        s = s * 1103515245u + 12345u;
        values[i] = (double)(s >> 8) / 16777216.0;
        tree = insert(tree, values[i]);
    }
    qsort(values, (size_t)count, sizeof *values, compare);
    for (long i = 0; i < count; i++) sum += values[i] * (i % 2 ? -1 : 1);
    printf("%.17g %d %.17g\n", values[count / 2], depth(tree), sum);
    return 0;
}
