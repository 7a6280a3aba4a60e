/* The kernels of cpu.c for indices of 64 bits. */
#define LONG_INDEX
#include "cpu.c"
