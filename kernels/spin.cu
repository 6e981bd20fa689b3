// spin: keep a stream busy for a stated time, to stand in for a model in tests and benchmarks.
//
// One thread reads the device's own nanosecond clock until enough of it has passed. It touches no memory
// and takes one multiprocessor's smallest share, so copies go on beside it at full speed, which is the
// point: what overlaps with `spin` overlaps with any model. The clock ticks every 32 ns to 1 us, by
// device, so a spin is that much too long at most.
//
// Launch: grid 1, block 1. Twin and launcher: spin.py.

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
