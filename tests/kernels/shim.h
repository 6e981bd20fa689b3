// Makes a .cu file compile as plain C++; the threads of all blocks run one after the other. If a kernel waits at
// barriers (GPULOADER_BARRIERS), the threads of a block take turns, from one barrier to the next.
//
// Arguments are checked against a kernel's parameters. `describe` returns a code for each parameter: "*f4" is a
// pointer to 4-byte floats, "*v" a pointer to anything, "u8" an unsigned integer of 8 bytes, "s128" a structure
// of 128 bytes. `run` takes the addresses of the arguments, as cuLaunchKernel does.
#pragma once
// No <chrono> and no <string>: compiling them takes longer than most kernels.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <type_traits>
#include <utility>

#define GPULOADER_ON_HOST
#define __global__
#define __device__
#define __grid_constant__
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after the other

struct Index {
    unsigned x = 0, y = 0, z = 0;
};
static Index blockIdx, threadIdx, blockDim, gridDim;

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline unsigned long long atomicAdd(unsigned long long* target, unsigned long long value) {
    const unsigned long long before = *target;
    *target += value;
    return before;
}

// Four bytes of two words, each of which a nibble of `chosen` numbers.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned chosen) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        result |= static_cast<unsigned>(both >> (chosen >> 4 * i & 7u) * 8 & 255u) << 8 * i;
    }
    return result;
}

inline unsigned long long read_clock() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<unsigned long long>(now.tv_sec) * 1000000000ull + static_cast<unsigned long long>(now.tv_nsec);
}

// The functions of numbers.cuh that are single instructions on the device.
inline unsigned short round_to_half(double value) {
    const unsigned short sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (std::isnan(value)) {
        return static_cast<unsigned short>(sign | 0x7e00);
    }
    if (size >= 65520) {
        return static_cast<unsigned short>(sign | 0x7c00);
    }
    const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
    // In units of the last place, ties to even; 1024 units are the smallest normal number of an exponent.
    const int units = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    return static_cast<unsigned short>(sign | (((exponent + 14) << 10) + units));
}

inline unsigned short round_to_half(float value) {
    return round_to_half(static_cast<double>(value));
}

inline float half_to_float(unsigned short bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) {
        return fraction ? NAN : sign * INFINITY;
    }
    return sign * std::ldexp(static_cast<float>(exponent ? fraction + 1024 : fraction),
                             (exponent ? exponent : 1) - 25);
}

inline float round_to_float(double value) {
    return static_cast<float>(value);
}

inline double float_to_double(float value) {
    return static_cast<double>(value);
}

inline unsigned float_bits(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float float_of_bits(int bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float multiply_add(float value, float factor, float offset) {
    return std::fma(value, factor, offset);
}

inline float byte_to_float(unsigned word, int number) {
    return static_cast<float>(word >> 8 * number & 255);
}

inline unsigned float_to_integer(float whole) {
    return static_cast<unsigned>(whole);
}

inline float truncate(float value) {
    return std::trunc(value);
}

// A double holds a product of floats.
inline float truncate_product(float value, float factor) {
    return static_cast<float>(std::trunc(static_cast<double>(value) * factor));
}

inline float round_product(float value, float factor) {
    return static_cast<float>(std::nearbyint(static_cast<double>(value) * factor));
}

// The device's may miss by as much as its last bit.
inline float invert(float value) {
    return std::nextafter(1.0f / value, 1.0f);
}

inline unsigned add_products(unsigned low, unsigned high, unsigned bytes, unsigned sum) {
    return sum + low * (bytes & 255u) + high * (bytes >> 8 & 255u);
}

// Two numbers of 16 bits, with the lower two of four bytes or the upper two.
inline unsigned __dp2a_lo(unsigned numbers, unsigned bytes, unsigned sum) {
    return add_products(numbers & 0xffffu, numbers >> 16, bytes, sum);
}

inline unsigned __dp2a_hi(unsigned numbers, unsigned bytes, unsigned sum) {
    return add_products(numbers & 0xffffu, numbers >> 16, bytes >> 16, sum);
}

inline unsigned add_signed_products(unsigned bytes, unsigned others, unsigned sum) {
    for (int bit = 0; bit < 32; bit += 8) {
        sum += (bytes >> bit & 255u) * static_cast<unsigned>(static_cast<signed char>(others >> bit & 255u));
    }
    return sum;
}

inline unsigned clamp_to_bytes(int first, int second) {
    const auto clamp = [](int number) { return number < 0 ? 0u : number > 255 ? 255u : static_cast<unsigned>(number); };
    return clamp(first) | clamp(second) << 8;
}

inline float clamp_to_float(int number) {
    return static_cast<float>(clamp_to_bytes(number, 0));
}

inline void prefetch(const void*) {}

// Built without contraction, so each operation is rounded.
inline float __fadd_rn(float one, float other) {
    return one + other;
}

inline float __fmul_rn(float one, float other) {
    return one * other;
}

inline float __fmaf_rn(float one, float other, float third) {
    return std::fma(one, other, third);
}

inline double __dadd_rn(double one, double other) {
    return one + other;
}

inline double __dsub_rn(double one, double other) {
    return one - other;
}

inline double __dmul_rn(double one, double other) {
    return one * other;
}

inline double __ddiv_rn(double one, double other) {
    return one / other;
}

#ifdef GPULOADER_BARRIERS
#include <ucontext.h>

#include <functional>
#include <memory>
#include <vector>

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK]};
    bool is_done = true;
    static constexpr std::size_t STACK = 1 << 17;
};
static ucontext_t scheduler;
static Fiber* running;
static std::function<void()> body;

inline void run_fiber() {
    body();
    running->is_done = true;
}

inline void __syncthreads() {
    swapcontext(&running->context, &scheduler);
}

// Runs a block's threads to each barrier, in ascending and in descending order by turns: threads that rely on
// an order without a barrier get a wrong result.
inline void run_block(unsigned threads) {
    static std::vector<Fiber> fibers(1024);
    for (unsigned thread = 0; thread < threads; ++thread) {
        Fiber& fiber = fibers[thread];
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = Fiber::STACK;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, run_fiber, 0);
        fiber.is_done = false;
    }
    bool is_any_left = true;
    for (bool is_down = false; is_any_left; is_down = !is_down) {
        is_any_left = false;
        for (unsigned turn = 0; turn < threads; ++turn) {
            threadIdx.x = is_down ? threads - 1 - turn : turn;
            running = &fibers[threadIdx.x];
            if (!running->is_done) {
                swapcontext(&scheduler, &running->context);
                is_any_left = is_any_left || !running->is_done;
            }
        }
    }
}
#endif

// Grid as x, y, z and block as x, y.
using Shape = unsigned[5];

template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, const Shape& shape, Arguments... arguments) {
    gridDim = {shape[0], shape[1], shape[2]};
    blockDim = {shape[3], shape[4], 1};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
#ifdef GPULOADER_BARRIERS
                body = [&] { kernel(arguments...); };
                run_block(blockDim.x);
#else
                for (threadIdx.y = 0; threadIdx.y < blockDim.y; ++threadIdx.y) {
                    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) {
                        kernel(arguments...);
                    }
                }
#endif
            }
        }
    }
}

// Appends a type's code to a text.
template <typename Type>
void describe_type(char*& end) {
    using Plain = std::remove_cv_t<Type>;
    if constexpr (std::is_pointer_v<Plain>) {
        *end++ = '*';
        describe_type<std::remove_pointer_t<Plain>>(end);
    } else if constexpr (std::is_void_v<Plain>) {
        *end++ = 'v';
    } else {
        const char* kind = std::is_same_v<Plain, bool>      ? "b"
                           : std::is_floating_point_v<Plain> ? "f"
                           : std::is_class_v<Plain>          ? "s"
                           : std::is_signed_v<Plain>         ? "i"
                                                             : "u";
        end += std::sprintf(end, "%s%zu", kind, sizeof(Plain));
    }
}

struct Entry {
    void (*describe)(char* text);
    void (*run)(const Shape& shape, void** arguments);
};

template <auto kernel>
struct Bound;

template <typename... Parameters, void (*kernel)(Parameters...)>
struct Bound<kernel> {
    static void describe(char* text) {
        ((describe_type<Parameters>(text), *text++ = ' '), ...);
        *text = 0;
    }

    template <std::size_t... i>
    static void unpack(const Shape& shape, void** arguments, std::index_sequence<i...>) {
        launch(kernel, shape, *static_cast<std::remove_cv_t<Parameters>*>(arguments[i])...);
    }

    static void run(const Shape& shape, void** arguments) {
        unpack(shape, arguments, std::index_sequence_for<Parameters...>{});
    }

    static constexpr Entry entry{describe, run};
};

// Everything a library exports; the build lists the kernel's entries.
#define EXPORT(...)                                                                                \
    static const Entry entries[] = {__VA_ARGS__};                                                  \
    extern "C" void describe(unsigned entry, char* text) { entries[entry].describe(text); }        \
    extern "C" void run(unsigned entry, const unsigned* shape, void** arguments) {                 \
        entries[entry].run({shape[0], shape[1], shape[2], shape[3], shape[4]}, arguments);         \
    }
