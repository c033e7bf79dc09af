/* Five bodies under gravity, the force loop unrolled by nobody but the compiler; the result is a digest of the energy. */
struct body { double x, y, z, vx, vy, vz, mass; };
#define BODIES 5
static struct body body[BODIES];

static void start(void) {
    for (int i = 0; i < BODIES; i++) {
        double r = 5.0 * i, tilt = 0.03 * i;
        body[i].x = r * (i % 2 ? 1 : -1), body[i].y = r * 0.25, body[i].z = r * tilt;
        body[i].vx = -body[i].y * 0.12, body[i].vy = i ? body[i].x * 0.4 / i : 0, body[i].vz = tilt;
        body[i].mass = i ? 0.04 / i : 39.47841760435743;
    }
}

static double energy(void) {
    double sum = 0;
    for (int i = 0; i < BODIES; i++) {
        struct body *p = &body[i];
        sum += 0.5 * p->mass * (p->vx * p->vx + p->vy * p->vy + p->vz * p->vz);
        for (int j = i + 1; j < BODIES; j++) {
            double dx = p->x - body[j].x, dy = p->y - body[j].y, dz = p->z - body[j].z;
            sum -= p->mass * body[j].mass / __builtin_sqrt(dx * dx + dy * dy + dz * dz);
        }
    }
    return sum;
}

int run(int steps) {
    start();
    for (int s = 0; s < steps; s++) {
        for (int i = 0; i < BODIES; i++) {
            struct body *p = &body[i];
            for (int j = i + 1; j < BODIES; j++) {
                struct body *q = &body[j];
                double dx = p->x - q->x, dy = p->y - q->y, dz = p->z - q->z, d2 = dx * dx + dy * dy + dz * dz;
                double f = 0.01 / (d2 * __builtin_sqrt(d2));
                p->vx -= dx * q->mass * f, p->vy -= dy * q->mass * f, p->vz -= dz * q->mass * f;
                q->vx += dx * p->mass * f, q->vy += dy * p->mass * f, q->vz += dz * p->mass * f;
            }
        }
        for (int i = 0; i < BODIES; i++)
            body[i].x += 0.01 * body[i].vx, body[i].y += 0.01 * body[i].vy, body[i].z += 0.01 * body[i].vz;
    }
    union { double value; unsigned long long bits; } u = {energy()};
    return (int)(u.bits ^ u.bits >> 32);
}
