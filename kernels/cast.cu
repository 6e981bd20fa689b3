// cast: converts numbers to another dtype, optionally multiplied by a factor.
//
// Memory-bound. A thread converts 4 neighbors at a time, with the widest loads and stores that their size and
// both addresses allow. Results equal those of NumPy's astype where it is defined: integers wrap around,
// floats round to the nearest, ties to even, and fractions are truncated toward zero. Elsewhere, floats
// beyond an integer's range saturate, and NaN becomes 0. Subnormals are kept; see numbers.cuh.
//
// With a factor, numbers become float (double if either dtype is double), are multiplied, and then cast.
// Everything is converted to Bfloat16 by way of float, as in ml_dtypes.
//
// Launch: any grid, one-dimensional blocks. Declaration and twin: cast.py.

#include "numbers.cuh"

template <typename Integer, typename Real>
__device__ inline Integer saturated(Real number) {
    constexpr bool is_signed = static_cast<Integer>(-1) < static_cast<Integer>(1);
    constexpr int bits = sizeof(Integer) * 8 - is_signed;
    // Powers of two, so exact in float and double.
    constexpr Real high = static_cast<Real>(1ull << (bits - 1)) * 2;
    constexpr Real low = is_signed ? -high : Real(0);
    constexpr Integer greatest = static_cast<Integer>(~0ull >> (64 - bits));
    constexpr Integer least = is_signed ? static_cast<Integer>(-greatest - 1) : Integer(0);
    if (number != number) {
        return 0;
    }
    return number >= high ? greatest : number <= low ? least : static_cast<Integer>(number);
}

template <typename Target>
struct To {
    static __device__ inline Target from(float number) { return saturated<Target>(number); }
    static __device__ inline Target from(double number) { return saturated<Target>(number); }
    template <typename Integer>
    static __device__ inline Target from(Integer number) {
        return static_cast<Target>(number);
    }
};

template <>
struct To<double> {
    static __device__ inline double from(float number) { return float_to_double(number); }
    template <typename Number>
    static __device__ inline double from(Number number) {
        return static_cast<double>(number);
    }
};

template <>
struct To<float> {
    static __device__ inline float from(double number) { return round_to_float(number); }
    template <typename Number>
    static __device__ inline float from(Number number) {
        return static_cast<float>(number);
    }
};

template <>
struct To<Half> {
    static __device__ inline Half from(double number) { return {round_to_half(number)}; }
    template <typename Number>
    static __device__ inline Half from(Number number) {
        return {round_to_half(static_cast<float>(number))};
    }
};

template <>
struct To<Bfloat16> {
    template <typename Number>
    static __device__ inline Bfloat16 from(Number number) {
        return {round_to_bfloat16(To<float>::from(number))};
    }
};

// x * y, rounded once: adding -0 changes no bit.
__device__ inline float multiplied(float number, float factor) {
    return multiply_add(number, factor, -0.0f);
}

__device__ inline double multiplied(double number, double factor) {
    return number * factor;
}

template <typename Source, typename Target>
struct Way {
    using Real = float;
};

template <typename Target>
struct Way<double, Target> {
    using Real = double;
};

template <typename Source>
struct Way<Source, double> {
    using Real = double;
};

template <>
struct Way<double, double> {
    using Real = double;
};

template <typename Source, typename Target>
struct Plain {
    __device__ Target operator()(Source number) const { return To<Target>::from(opened(number)); }
};

template <typename Source, typename Target>
struct Scaled {
    using Real = typename Way<Source, Target>::Real;
    Real factor;
    __device__ Target operator()(Source number) const {
        return To<Target>::from(multiplied(To<Real>::from(opened(number)), factor));
    }
};

template <typename Source, typename Target, typename Change>
__device__ inline void change(const Source* source, Target* target, unsigned long long count,
                              Change changed) {
    const unsigned long long thread = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const unsigned long long threads = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long start = 0;  // the first number to convert one at a time
    if (is_aligned(source) && is_aligned(target)) {
        start = count / 4 * 4;
// The launcher starts a thread for every four numbers, so the loop body runs once: nothing to unroll.
#pragma unroll 1
        for (unsigned long long i = thread; i < count / 4; i += threads) {
            const Four<Source> from = reinterpret_cast<const Four<Source>*>(source)[i];
            Four<Target> to;
            for (int part = 0; part < 4; ++part) {
                to.at[part] = changed(from.at[part]);
            }
            reinterpret_cast<Four<Target>*>(target)[i] = to;
        }
    }
#pragma unroll 1
    for (unsigned long long i = start + thread; i < count; i += threads) {
        target[i] = changed(source[i]);
    }
}

template <typename Source, typename Target>
__global__ void cast(const Source* source, Target* target, unsigned long long count, double factor,
                     int is_scaled) {
    if (is_scaled) {
        change(source, target, count,
               Scaled<Source, Target>{To<typename Way<Source, Target>::Real>::from(factor)});
    } else {
        change(source, target, count, Plain<Source, Target>{});
    }
}
