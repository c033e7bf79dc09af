/* Planets under gravity. Holds: f64 values in locals of a doubly nested loop, arrays of structs in memory.
   Argument: steps. Checks that the energy stays what it was. */
#include "common.h"
#include <math.h>
#include <stdio.h>

#define BODIES 5
#define PI 3.141592653589793
#define SOLAR_MASS (4 * PI * PI)
#define DAYS_PER_YEAR 365.24

struct body { double position[3], velocity[3], mass; };

/* Sun, Jupiter, Saturn, Uranus, Neptune: AU, AU a day, solar masses. */
static struct body bodies[BODIES] = {
    {{0, 0, 0}, {0, 0, 0}, 1},
    {{4.84143144246472090e+00, -1.16032004402742839e+00, -1.03622044471123109e-01},
     {1.66007664274403694e-03, 7.69901118419740425e-03, -6.90460016972063023e-05}, 9.54791938424326609e-04},
    {{8.34336671824457987e+00, 4.12479856412430479e+00, -4.03523417114321381e-01},
     {-2.76742510726411899e-03, 4.99852801234917238e-03, 2.30417297573763929e-05}, 2.85885980666130812e-04},
    {{1.28943695621391310e+01, -1.51111514016986312e+01, -2.23307578892655734e-01},
     {2.96460137564761618e-03, 2.37847173959480950e-03, -2.96589568540237556e-05}, 4.36624404335156298e-05},
    {{1.53796971148509165e+01, -2.59193146099879641e+01, 1.79258772950371181e-01},
     {2.68067772490389322e-03, 1.62824170038242295e-03, -9.51592254519715870e-05}, 5.15138902046611451e-05},
};

static void start(void) {
    double momentum[3] = {0, 0, 0};
    for (int i = 0; i < BODIES; i++) {
        bodies[i].mass *= SOLAR_MASS;
        for (int k = 0; k < 3; k++) {
            bodies[i].velocity[k] *= DAYS_PER_YEAR;
            momentum[k] += bodies[i].velocity[k] * bodies[i].mass;
        }
    }
    for (int k = 0; k < 3; k++) bodies[0].velocity[k] = -momentum[k] / SOLAR_MASS;
}

static double energy(void) {
    double sum = 0;
    for (int i = 0; i < BODIES; i++) {
        const struct body *a = &bodies[i];
        double speed2 = 0;
        for (int k = 0; k < 3; k++) speed2 += a->velocity[k] * a->velocity[k];
        sum += 0.5 * a->mass * speed2;
        for (int j = i + 1; j < BODIES; j++) {
            double distance2 = 0;
            for (int k = 0; k < 3; k++) {
                double d = a->position[k] - bodies[j].position[k];
                distance2 += d * d;
            }
            sum -= a->mass * bodies[j].mass / sqrt(distance2);
        }
    }
    return sum;
}

static void step(double dt) {
    for (int i = 0; i < BODIES; i++) {
        struct body *a = &bodies[i];
        for (int j = i + 1; j < BODIES; j++) {
            struct body *b = &bodies[j];
            double dx = a->position[0] - b->position[0], dy = a->position[1] - b->position[1];
            double dz = a->position[2] - b->position[2];
            double distance2 = dx * dx + dy * dy + dz * dz;
            double magnitude = dt / (distance2 * sqrt(distance2));
            a->velocity[0] -= dx * b->mass * magnitude;
            a->velocity[1] -= dy * b->mass * magnitude;
            a->velocity[2] -= dz * b->mass * magnitude;
            b->velocity[0] += dx * a->mass * magnitude;
            b->velocity[1] += dy * a->mass * magnitude;
            b->velocity[2] += dz * a->mass * magnitude;
        }
    }
    for (int i = 0; i < BODIES; i++)
        for (int k = 0; k < 3; k++) bodies[i].position[k] += dt * bodies[i].velocity[k];
}

int main(int argc, char **argv) {
    long steps = argument(argc, argv, 1, 100000);
    start();
    double before = energy();
    printf("%.9f\n", before);
    for (long i = 0; i < steps; i++) step(0.01);
    double after = energy();
    printf("%.9f\n%016llx\n", after, (unsigned long long)digest_f64(DIGEST_START, after));
    return fabs(after - before) < 1e-3 * fabs(before) ? 0 : 1;
}
