// numbers.cuh: 16-bit floats, and arithmetic that rounds like IEEE 754 and NumPy.
//
// CuPy compiles with -ftz=true, so the code that the compiler generates flushes subnormal floats to zero. The
// functions here use instructions with explicit rounding that keep subnormals, so that a kernel and its NumPy
// twin agree on every bit. A NaN stays a NaN, but its payload is unspecified. Halves are stored as bits,
// which needs no CUDA header, so the bare compiler can check every kernel. Tests replace the few device
// instructions by C++ code.

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

__device__ inline float float_of_bits(int bits) {
    return __int_as_float(bits);
}

// value * factor + offset, rounded once.
__device__ inline float multiply_add(float value, float factor, float offset) {
    return __fmaf_ieee_rn(value, factor, offset);
}

// Integers by float arithmetic, of which a GPU does more at once than conversions: a sum with 2**23 has no fraction.
// Values are from 0 to below 2**23.
constexpr float WHOLE = 8388608.0f;

__device__ inline float byte_to_float(unsigned word, int number) {
    return __fadd_rn(__uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u + number)), -WHOLE);
}

__device__ inline unsigned float_to_integer(float whole) {
    return __float_as_uint(__fadd_rn(whole, WHOLE)) - 0x4b000000u;
}

__device__ inline float truncate(float value) {
    return __fadd_rn(__fadd_rz(value, WHOLE), -WHOLE);
}

// Of products that are not rounded before.
__device__ inline float truncate_product(float value, float factor) {
    return __fadd_rn(__fmaf_rz(value, factor, WHOLE), -WHOLE);
}

__device__ inline float round_product(float value, float factor) {
    return __fadd_rn(__fmaf_rn(value, factor, WHOLE), -WHOLE);
}

// The sum of another number and the products of four bytes with four signed ones.
__device__ inline unsigned add_signed_products(unsigned bytes, unsigned others, unsigned sum) {
    unsigned result;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(bytes), "r"(others), "r"(sum));
    return result;
}

// Two bytes, the first one lowest: 0 for what is less, and 255 for what is more. The instruction puts its second source
// lowest.
__device__ inline unsigned clamp_to_bytes(int first, int second) {
    unsigned result;
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;" : "=r"(result) : "r"(second), "r"(first));
    return result;
}

__device__ inline float clamp_to_float(int number) {
    return __fadd_rn(__uint_as_float(clamp_to_bytes(number, 0) | 0x4b000000u), -WHOLE);
}

// 1 / value, which the last bits may miss.
__device__ inline float invert(float value) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}
#endif

// Adding -0 keeps the sign of a product of 0.
__device__ inline float multiply(float value, float factor) {
    return multiply_add(value, factor, -0.0f);
}

__device__ inline float add(float one, float other) {
    return multiply_add(1.0f, one, other);
}

// To the nearest, ties to even: a carry out of the fraction rightly raises the exponent, up to infinity.
__device__ inline unsigned short round_to_bfloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned short result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
#else
    const unsigned bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return static_cast<unsigned short>((bits >> 16) | 0x40u);
    }
    return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

__device__ inline void encode(float value, float& result) {
    result = value;
}

__device__ inline void encode(double value, double& result) {
    result = value;
}

__device__ inline void encode(float value, Half& result) {
    result.bits = round_to_half(value);
}

__device__ inline void encode(float value, Bfloat16& result) {
    result.bits = round_to_bfloat16(value);
}

// The number to compute with: one of 16 bits becomes a float, any other number stays as it is.
__device__ inline float opened(Half number) {
    return half_to_float(number.bits);
}

__device__ inline float opened(Bfloat16 number) {
    return float_of_bits(static_cast<int>(static_cast<unsigned>(number.bits) << 16));
}

template <typename Number>
__device__ inline Number opened(Number number) {
    return number;
}

// Four neighbors, moved at once: by one instruction, or by two if they take 32 bytes.
template <typename Value>
struct alignas(sizeof(Value) < 4 ? sizeof(Value) * 4 : 16) Four {
    Value at[4];
};

template <typename Value>
__device__ inline bool is_aligned(const Value* values) {
    return reinterpret_cast<unsigned long long>(values) % alignof(Four<Value>) == 0;
}
