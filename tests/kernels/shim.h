// Lets a .cu file compile as plain C++: every thread of every block runs after the one before it.
#pragma once
#include <chrono>

#define GPULOADER_ON_HOST
#define __global__
#define __device__

struct Index {
    unsigned x = 0, y = 0, z = 0;
};
static Index blockIdx, threadIdx, blockDim, gridDim;

inline unsigned long long atomicAdd(unsigned long long* target, unsigned long long value) {
    const unsigned long long before = *target;
    *target += value;
    return before;
}

inline unsigned long long read_clock() {
    using namespace std::chrono;
    return static_cast<unsigned long long>(
        duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, unsigned grid, unsigned block, Arguments... arguments) {
    gridDim.x = grid;
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
        for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) {
            kernel(arguments...);
        }
    }
}
