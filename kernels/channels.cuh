// channels.cuh: what becomes of a finished byte of each channel. The host's part is in normalize.py.

struct Channels {
    float factor[4];
    float offset[4];
};

template <typename Target>
__device__ inline void finish(float byte, float factor, float offset, Target& result) {
    encode(multiply_add(byte, factor, offset), result);
}

__device__ inline void finish(float byte, float, float, unsigned char& result) {
    result = static_cast<unsigned char>(float_to_integer(byte));
}
