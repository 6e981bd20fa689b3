// numbers.cuh: floating point in 16 bits, and arithmetic that rounds as IEEE 754 and NumPy do.
//
// CuPy compiles with -ftz=true, which makes subnormal floats zero in everything the compiler writes itself.
// What is written here says its rounding and leaves subnormals alone, so that a kernel and its NumPy twin
// agree on every bit. A NaN stays a NaN; which of them is not laid down. Halves are bits: no header of CUDA
// is needed, so that the compiler alone can check all this. Tests give the few instructions of the device a
// stand-in in C++.

struct Half {
    unsigned short bits;
};

struct Bfloat16 {
    unsigned short bits;
};

#ifndef GPULOADER_ON_HOST
__device__ inline unsigned short round_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ inline unsigned short round_to_half(double value) {
    unsigned short bits;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(value));
    return bits;
}

__device__ inline float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ inline float round_to_float(double value) {
    float result;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(result) : "d"(value));
    return result;
}

__device__ inline double float_to_double(float value) {
    double result;
    asm("cvt.f64.f32 %0, %1;" : "=d"(result) : "f"(value));
    return result;
}

__device__ inline unsigned float_bits(float value) {
    return __float_as_uint(value);
}

// value * factor + offset, rounded once.
__device__ inline float multiply_add(float value, float factor, float offset) {
    return __fmaf_ieee_rn(value, factor, offset);
}
#endif

// To the nearest, ties to even: a carry out of the fraction belongs in the exponent, up to infinity.
__device__ inline unsigned short round_to_bfloat16(float value) {
    const unsigned bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return static_cast<unsigned short>((bits >> 16) | 0x40u);
    }
    return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ inline void encode(float value, float& result) {
    result = value;
}

__device__ inline void encode(float value, Half& result) {
    result.bits = round_to_half(value);
}

__device__ inline void encode(float value, Bfloat16& result) {
    result.bits = round_to_bfloat16(value);
}

// Four neighbours, moved at once: by one instruction, or by two where they take 32 bytes.
template <typename Value>
struct alignas(sizeof(Value) < 4 ? sizeof(Value) * 4 : 16) Four {
    Value at[4];
};

template <typename Value>
__device__ inline bool is_aligned(const Value* values) {
    return reinterpret_cast<unsigned long long>(values) % alignof(Four<Value>) == 0;
}
