/* Launches a compiled kernel through the CUDA driver, whose functions driver.py passes as addresses.
 *
 * Triton 3.6 has gcc build a launcher for every list of parameter types, which takes 0.3 s each.
 * This one launches all kernels.
 */
#include <stddef.h>
#include <stdint.h>

#define MOST 128 /* parameters of a kernel; as in driver.py */

/* Packed by driver.py. */
struct launch {
    uint64_t function, stream;
    uint32_t grid[3], threads, shared_bytes, count;
    int32_t device, padding;
    uint64_t values[]; /* the parameters, each at the start of its own 8 bytes */
};

static struct {
    int (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, void *, void **, void **);
    int (*get_context)(void **);
    int (*set_context)(void *);
    int (*get_device)(int *, int);
    int (*retain_context)(void **, int);
} driver;

void pna_launch_driver(void *launch_kernel, void *get_context, void *set_context,
                       void *get_device, void *retain_context)
{
    driver.launch_kernel = launch_kernel;
    driver.get_context = get_context;
    driver.set_context = set_context;
    driver.get_device = get_device;
    driver.retain_context = retain_context;
}

/* A thread that has not used CUDA yet has no context; torch uses the primary one. */
static int ensure_context(int index)
{
    void *context = NULL;
    int error = driver.get_context(&context), device;
    if (error || context) return error;
    if ((error = driver.get_device(&device, index))) return error;
    if ((error = driver.retain_context(&context, device))) return error;
    return driver.set_context(context);
}

/* Returns the error code of the driver, 0 for success. An empty grid launches nothing. */
static int launch(const struct launch *p)
{
    void *parameters[MOST];
    if (!p->grid[0] || !p->grid[1] || !p->grid[2]) return 0;
    for (uint32_t i = 0; i < p->count; i++) parameters[i] = (void *)&p->values[i];
    return driver.launch_kernel((void *)p->function, p->grid[0], p->grid[1], p->grid[2], p->threads,
                                1, 1, p->shared_bytes, (void *)p->stream, parameters, NULL);
}

/* Launches kernels one after another, up to the first error. Their records follow each other. */
int64_t pna_launch_all(const char *records, int64_t number)
{
    int error = number > 0 ? ensure_context(((const struct launch *)records)->device) : 0;
    for (; number > 0 && !error; number--) {
        const struct launch *p = (const void *)records;
        error = launch(p);
        records += sizeof *p + p->count * sizeof *p->values;
    }
    return error;
}

int64_t pna_launch_size(void) { return sizeof(struct launch); }
