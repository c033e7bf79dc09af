/* Inference by a transformer of LLaMA's form (RMS norms, rotary positions, attention over the keys and values so far,
   SwiGLU), f32, with weights drawn at random. Arguments: width, layers, tokens to make. Prints the tokens and a digest of
   the last logits; checks that the probabilities of each step sum up to one. */
#include "common.h"
#include <math.h>
#include <stdio.h>

#define HEADS 4
#define WORDS 256

static uint32_t state = 2463534242u;

static float *draw(int count, float scale) {
    float *values = malloc(sizeof *values * (size_t)count);
    for (int i = 0; i < count; i++) values[i] = ((float)(next_random(&state) >> 8) / 16777216.0f - 0.5f) * scale;
    return values;
}

static void product(float *out, const float *matrix, const float *x, int rows, int columns) {
    for (int i = 0; i < rows; i++) {
        float sum = 0;
        for (int j = 0; j < columns; j++) sum += matrix[i * columns + j] * x[j];
        out[i] = sum;
    }
}

static void norm(float *out, const float *x, int n) {
    float squares = 0;
    for (int i = 0; i < n; i++) squares += x[i] * x[i];
    squares = 1 / sqrtf(squares / (float)n + 1e-5f);
    for (int i = 0; i < n; i++) out[i] = x[i] * squares;
}

static float softmax(float *x, int n) {
    float most = x[0], sum = 0, all = 0;
    for (int i = 1; i < n; i++) if (x[i] > most) most = x[i];
    for (int i = 0; i < n; i++) sum += x[i] = expf(x[i] - most);
    for (int i = 0; i < n; i++) all += x[i] /= sum;
    return all;
}

static void rotate(float *x, int n, int position) {
    for (int i = 0; i < n; i += 2) {
        float angle = (float)position * powf(10000, -(float)(i % (n / HEADS)) / (float)(n / HEADS));
        float c = cosf(angle), s = sinf(angle), a = x[i], b = x[i + 1];
        x[i] = a * c - b * s;
        x[i + 1] = a * s + b * c;
    }
}

struct layer { float *q, *k, *v, *o, *gate, *up, *down, *keys, *values; };

static void run_layer(struct layer *l, float *x, int n, int hidden, int position, float *room) {
    float *y = room, *q = y + n, *out = q + n, *gate = out + n, *up = gate + hidden, *scores = up + hidden;
    float *key = l->keys + position * n, *value = l->values + position * n;
    int size = n / HEADS;
    norm(y, x, n);
    product(q, l->q, y, n, n);
    product(key, l->k, y, n, n);
    product(value, l->v, y, n, n);
    rotate(q, n, position);
    rotate(key, n, position);
    for (int h = 0; h < HEADS; h++) {
        for (int t = 0; t <= position; t++) {
            float sum = 0;
            for (int i = 0; i < size; i++) sum += q[h * size + i] * l->keys[t * n + h * size + i];
            scores[t] = sum / sqrtf((float)size);
        }
        softmax(scores, position + 1);
        for (int i = 0; i < size; i++) {
            float sum = 0;
            for (int t = 0; t <= position; t++) sum += scores[t] * l->values[t * n + h * size + i];
            out[h * size + i] = sum;
        }
    }
    product(y, l->o, out, n, n);
    for (int i = 0; i < n; i++) x[i] += y[i];
    norm(y, x, n);
    product(gate, l->gate, y, hidden, n);
    product(up, l->up, y, hidden, n);
    for (int i = 0; i < hidden; i++) gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
    product(y, l->down, gate, n, hidden);
    for (int i = 0; i < n; i++) x[i] += y[i];
}

int main(int argc, char **argv) {
    int n = (int)argument(argc, argv, 1, 128), layers = (int)argument(argc, argv, 2, 4);
    int tokens = (int)argument(argc, argv, 3, 32), hidden = n * 8 / 3, token = 1;
    if (n < 2 * HEADS || n % (2 * HEADS) || layers < 1 || tokens < 1) return 64;
    float scale = 3.4f / sqrtf((float)n), *words = draw(WORDS * n, 2), *out = draw(WORDS * n, 0.3f);
    float *x = malloc(sizeof(float) * (size_t)n);
    float *logits = malloc(sizeof(float) * WORDS), *room = malloc(sizeof(float) * (size_t)(3 * n + 2 * hidden + tokens));
    struct layer *all = malloc(sizeof *all * (size_t)layers);
    for (int i = 0; i < layers; i++)
        all[i] = (struct layer){
            draw(n * n, scale), draw(n * n, scale), draw(n * n, scale), draw(n * n, scale), draw(n * hidden, scale),
            draw(n * hidden, scale), draw(n * hidden, scale), draw(n * tokens, 0), draw(n * tokens, 0),
        };
    for (int position = 0; position < tokens; position++) {
        memcpy(x, words + token * n, sizeof(float) * (size_t)n);
        for (int i = 0; i < layers; i++) run_layer(all + i, x, n, hidden, position, room);
        norm(x, x, n);
        product(logits, out, x, WORDS, n);
        float sum = softmax(logits, WORDS);
        if (fabsf(sum - 1) > 1e-4f) return 1;
        float at = (float)(next_random(&state) >> 8) / 16777216.0f;
        for (token = 0; token < WORDS - 1 && at >= logits[token]; token++) at -= logits[token];
        printf("%d%c", token, position + 1 < tokens ? ' ' : '\n');
    }
    printf("%016llx\n", (unsigned long long)digest_bytes(DIGEST_START, logits, sizeof(float) * WORDS));
    return 0;
}
