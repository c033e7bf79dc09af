/* A small neural network learns to tell three spirals apart. Holds: weights, Adam's two moments and running powers, the
   place in a learning-rate schedule, the state of the random numbers that shuffle and drop out, f32 sums in locals.
   Arguments: epochs, points, hidden units, file for the weights. Prints the loss curve and a digest of the weights;
   checks one gradient against a difference quotient, and that the loss has fallen. */
#include "common.h"
#include <math.h>
#include <stdio.h>

#define LAYERS 3
#define CLASSES 3
#define BATCH 8
#define WARM_UP 10   /* steps */
#define TOP_RATE 0.01f
#define KEEP 9       /* of ten units of the second hidden layer */

static int width[LAYERS + 1], offset[LAYERS + 1];
static float *weight, *gradient, *moment1, *moment2, power1 = 1, power2 = 1;
static float *value[LAYERS + 1], *slope[LAYERS + 1], *delta[LAYERS + 1];
static float (*point)[2];
static int *label;
static uint32_t dice = 0x9e3779b9u;

static float uniform(void) { return (float)(next_random(&dice) >> 8) / 16777216.0f; }

static float *floats(int count) {
    float *made = calloc((size_t)count, sizeof *made);
    if (!made) exit(2);
    return made;
}

static void build(int hidden) {
    const int widths[LAYERS + 1] = {2, hidden, hidden, CLASSES};
    for (int l = 0; l <= LAYERS; l++) {
        width[l] = widths[l];
        value[l] = floats(width[l]), slope[l] = floats(width[l]), delta[l] = floats(width[l]);
        if (l > 0) offset[l] = offset[l - 1] + (width[l - 1] + 1) * width[l];
    }
    weight = floats(offset[LAYERS]), gradient = floats(offset[LAYERS]);
    moment1 = floats(offset[LAYERS]), moment2 = floats(offset[LAYERS]);
    for (int l = 0; l < LAYERS; l++) {
        float range = sqrtf(6.0f / (float)(width[l] + width[l + 1]));
        for (int i = 0; i < width[l] * width[l + 1]; i++) weight[offset[l] + i] = range * (2 * uniform() - 1);
    }
}

static void spirals(int points) {
    point = malloc((size_t)points * sizeof *point), label = malloc((size_t)points * sizeof *label);
    if (!point || !label) exit(2);
    for (int n = 0; n < points; n++) {
        label[n] = n % CLASSES;
        float along = 0.1f + 0.9f * uniform(), turn = 4 * along + 2.0944f * (float)label[n] + 0.1f * uniform();
        point[n][0] = along * cosf(turn), point[n][1] = along * sinf(turn);
    }
}

/* Row by row: the weights of one unit, then all units' biases. Returns the loss; the last layer's delta is set. */
static float forward(int n, int training) {
    value[0][0] = point[n][0], value[0][1] = point[n][1];
    for (int l = 0; l < LAYERS; l++) {
        const float *row = weight + offset[l], *bias = row + width[l] * width[l + 1];
        for (int j = 0; j < width[l + 1]; j++, row += width[l]) {
            float sum = bias[j];
            for (int i = 0; i < width[l]; i++) sum += row[i] * value[l][i];
            if (l == LAYERS - 1) {
                value[l + 1][j] = sum;
                continue;
            }
            float bent = tanhf(sum), kept = 1;
            if (training && l == 1) kept = next_random(&dice) % 10 < KEEP ? 10.0f / KEEP : 0;
            value[l + 1][j] = kept * bent, slope[l + 1][j] = kept * (1 - bent * bent);
        }
    }
    const float *out = value[LAYERS];
    float highest = fmaxf(fmaxf(out[0], out[1]), out[2]), sum = 0;
    for (int j = 0; j < CLASSES; j++) sum += expf(out[j] - highest);
    for (int j = 0; j < CLASSES; j++) delta[LAYERS][j] = expf(out[j] - highest) / sum - (float)(j == label[n]);
    return logf(sum) + highest - out[label[n]];
}

static void backward(void) {
    for (int l = LAYERS - 1; l >= 0; l--) {
        const float *row = weight + offset[l];
        float *change = gradient + offset[l], *bias = change + width[l] * width[l + 1];
        for (int i = 0; i < width[l]; i++) delta[l][i] = 0;
        for (int j = 0; j < width[l + 1]; j++, row += width[l], change += width[l]) {
            float d = delta[l + 1][j];
            bias[j] += d;
            for (int i = 0; i < width[l]; i++) change[i] += d * value[l][i], delta[l][i] += d * row[i];
        }
        for (int i = 0; i < width[l]; i++) delta[l][i] *= slope[l][i];
    }
}

static float rate(int step, int steps) {
    if (step < WARM_UP) return TOP_RATE * (float)(step + 1) / WARM_UP;
    return TOP_RATE * 0.5f * (1 + cosf(3.14159265f * (float)(step - WARM_UP) / (float)(steps - WARM_UP + 1)));
}

static void adam(float speed, int batch) {
    power1 *= 0.9f, power2 *= 0.999f;
    for (int i = 0; i < offset[LAYERS]; i++) {
        float g = gradient[i] / (float)batch;
        moment1[i] = 0.9f * moment1[i] + 0.1f * g;
        moment2[i] = 0.999f * moment2[i] + 0.001f * g * g;
        weight[i] -= speed * (moment1[i] / (1 - power1)) / (sqrtf(moment2[i] / (1 - power2)) + 1e-8f);
        gradient[i] = 0;
    }
}

static int gradient_is_right(void) {
    const int which = offset[0] + 1;
    const float kept = weight[which], step = 1e-2f;
    forward(0, 0), backward();
    float told = gradient[which];
    memset(gradient, 0, (size_t)offset[LAYERS] * sizeof *gradient);
    weight[which] = kept + step;
    float above = forward(0, 0);
    weight[which] = kept - step;
    float seen = (above - forward(0, 0)) / (2 * step);
    weight[which] = kept;
    return fabsf(told - seen) < 1e-3f + 0.02f * fabsf(seen);
}

static float epoch(int *order, int points, int *step, int steps) {
    float loss = 0;
    for (int n = points - 1; n > 0; n--) {
        int other = (int)(next_random(&dice) % (uint32_t)(n + 1)), swap = order[n];
        order[n] = order[other], order[other] = swap;
    }
    for (int first = 0; first < points; first += BATCH) {
        int batch = points - first < BATCH ? points - first : BATCH;
        for (int n = 0; n < batch; n++) loss += forward(order[first + n], 1), backward();
        adam(rate((*step)++, steps), batch);
    }
    return loss / (float)points;
}

int main(int argc, char **argv) {
    int epochs = (int)argument(argc, argv, 1, 40), points = (int)argument(argc, argv, 2, 150), right = 0;
    build((int)argument(argc, argv, 3, 16));
    spirals(points);
    if (!gradient_is_right()) return puts("the gradient is wrong"), 1;
    int step = 0, steps = epochs * ((points + BATCH - 1) / BATCH), *order = malloc((size_t)points * sizeof *order);
    if (!order) return 2;
    for (int n = 0; n < points; n++) order[n] = n;
    float first = 0, last = 0;
    for (int e = 0; e < epochs; e++) {
        last = epoch(order, points, &step, steps);
        if (e == 0) first = last;
        if (epochs <= 30 || e % 10 == 9) printf("epoch %d: loss %.6f\n", e + 1, (double)last), fflush(stdout);
    }
    for (int n = 0; n < points; n++) {
        forward(n, 0);
        const float *out = value[LAYERS];
        right += out[label[n]] >= fmaxf(fmaxf(out[0], out[1]), out[2]);
    }
    printf("%d of %d right, %d weights %016llx\n", right, points, offset[LAYERS],
           (unsigned long long)digest_bytes(DIGEST_START, weight, (size_t)offset[LAYERS] * sizeof *weight));
    FILE *file = argc > 4 ? fopen(argv[4], "w") : NULL;
    if (argc > 4 && !file) return perror(argv[4]), 73;
    for (int i = 0; file && i < offset[LAYERS]; i++) fprintf(file, "%a\n", (double)weight[i]);
    if (file && fclose(file) != 0) return 74;
    return last < first ? 0 : 1;
}
