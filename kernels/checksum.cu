// checksum: a 64-bit sum of a buffer that does not depend on the order in which threads add to it.
//
// The tests on real devices use it to check, without a copy to the host, that a batch held by a user has not
// changed. Each thread strides over 8-byte words and mixes a word with its position, so that swapped words
// change the sum (splitmix64, Steele et al. 2014). It keeps its own total and adds it atomically at the end;
// sums modulo 2^64 commute. A last partial word is filled with zeros. The launcher and the twin mix in the
// length, so that trailing zeros count.
//
// Words are assembled from bytes, because slices of a batch may start at any address. That costs bandwidth,
// which does not matter for a check.
//
// Launch: any grid, any block. Declaration and twin: checksum.py.

static __device__ unsigned long long mix(unsigned long long value) {
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

extern "C" __global__ void checksum(const unsigned char* bytes, unsigned long long length,
                                    unsigned long long* total) {
    const unsigned long long words = (length + 7) / 8;
    const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long sum = 0;
    for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < words; i += stride) {
        unsigned long long word = 0;
        for (unsigned byte = 0; byte < 8 && i * 8 + byte < length; ++byte) {
            word |= static_cast<unsigned long long>(bytes[i * 8 + byte]) << (8 * byte);
        }
        sum += mix(word ^ mix(i));
    }
    if (sum != 0) {
        atomicAdd(total, sum);
    }
}
