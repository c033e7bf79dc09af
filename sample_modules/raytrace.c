/* A ray tracer. Holds: vectors of f64 passed and returned by memory, a recursion for mirrors, the picture so far.
   Arguments: width, height, how often a ray is mirrored. Prints the picture in characters where it is narrow, and a digest;
   checks that each hit lies on the surface that was hit. */
#include "common.h"
#include <math.h>
#include <stdio.h>

typedef struct { double x, y, z; } vector;
struct ball { vector middle; double radius, light, mirror; };

static const struct ball balls[] = {
    {{0, -1000, 0}, 1000, 0.4, 0.1},  /* the ground */
    {{-1.1, 1, 0.4}, 1, 0.9, 0.3},
    {{1.2, 0.8, -0.5}, 0.8, 0.5, 0.6},
    {{0.1, 0.4, -1.6}, 0.4, 0.95, 0},
};
#define BALLS ((int)(sizeof balls / sizeof *balls))

static vector add(vector a, vector b) { return (vector){a.x + b.x, a.y + b.y, a.z + b.z}; }
static vector times(vector a, double k) { return (vector){a.x * k, a.y * k, a.z * k}; }
static double dot(vector a, vector b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
static vector unit(vector a) { return times(a, 1 / sqrt(dot(a, a))); }

/* The nearest ball along a ray of length 1, and how far it is; -1 for none. */
static int nearest(vector from, vector along, double *distance) {
    int found = -1;
    *distance = 1e30;
    for (int i = 0; i < BALLS; i++) {
        vector to = add(from, times(balls[i].middle, -1));
        double half = dot(to, along), left = half * half - dot(to, to) + balls[i].radius * balls[i].radius;
        if (left < 0) continue;
        double root = sqrt(left), near = -half - root, far = -half + root;
        double t = near > 1e-6 ? near : far;
        if (t > 1e-6 && t < *distance) *distance = t, found = i;
    }
    return found;
}

static double trace(vector from, vector along, int mirrors, uint64_t *digest) {
    double distance;
    int hit = nearest(from, along, &distance);
    if (hit < 0) return 0.6 + 0.4 * along.y;
    const struct ball *ball = &balls[hit];
    vector place = add(from, times(along, distance)), outward = add(place, times(ball->middle, -1));
    if (fabs(sqrt(dot(outward, outward)) - ball->radius) > 1e-6 * ball->radius) puts("off the surface"), exit(1);
    outward = times(outward, 1 / ball->radius);
    *digest = digest_f64(digest_u64(*digest, (uint64_t)hit), distance);
    vector to_light = unit((vector){-2, 5, -4});
    double shadow_distance, bright = 0.1;
    if (nearest(place, to_light, &shadow_distance) < 0) bright += 0.9 * fmax(0, dot(outward, to_light));
    double light = ball->light * bright;
    if (hit == 0 && ((int)floor(place.x) + (int)floor(place.z)) % 2) light *= 0.5;
    if (ball->mirror == 0 || mirrors == 0) return light;
    vector away = add(along, times(outward, -2 * dot(along, outward)));
    return (1 - ball->mirror) * light + ball->mirror * trace(place, unit(away), mirrors - 1, digest);
}

int main(int argc, char **argv) {
    long width = argument(argc, argv, 1, 160), height = argument(argc, argv, 2, 100);
    int mirrors = (int)argument(argc, argv, 3, 4);
    uint64_t digest = DIGEST_START;
    unsigned char *picture = malloc((size_t)(width * height));
    if (!picture) return 2;
    for (long y = 0; y < height; y++)
        for (long x = 0; x < width; x++) {
            double right = (x + 0.5) / width * 2 - 1, up = 1 - (y + 0.5) / height * 2;
            vector along = unit((vector){right * 1.2, up * 0.75 - 0.1, 2});
            double light = trace((vector){0, 1.3, -5.5}, along, mirrors, &digest);
            picture[y * width + x] = (unsigned char)(fmin(fmax(light, 0), 0.999) * 256);
        }
    for (long y = 0; width <= 80 && y < height; y++, putchar('\n'))
        for (long x = 0; x < width; x++) putchar(" .:-=+*#%@"[picture[y * width + x] * 10 / 256]);
    digest = digest_bytes(digest, picture, (size_t)(width * height));
    printf("%ld x %ld %016llx\n", width, height, (unsigned long long)digest);
    return 0;
}
