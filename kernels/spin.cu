// spin: keeps a stream busy for a given time, standing in for a model in tests and benchmarks.
//
// One thread polls the device's nanosecond clock until the time has passed. It accesses no memory and
// occupies the smallest share of one multiprocessor, so copies continue at full speed: what overlaps with
// `spin` overlaps with any model. The clock ticks every 32 ns to 1 us, depending on the device; a spin is too
// long by one tick at most.
//
// Launch: grid 1, block 1. Declaration and twin: spin.py.

#ifndef GPULOADER_ON_HOST
static __device__ unsigned long long read_clock() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
#endif

extern "C" __global__ void spin(unsigned long long nanoseconds) {
    const unsigned long long start = read_clock();
    while (read_clock() - start < nanoseconds) {
    }
}
