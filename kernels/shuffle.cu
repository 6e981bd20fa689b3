// shuffle: computes the permutations of gpuloader/order/randomness.py on the device, with the same numbers.
//
// Short permutations are sorted: `hash_numbers` writes hashes with the numbers in the low bits, the launcher
// sorts them, and `take_numbers` copies the low bits of the requested part. Of long permutations, only the
// requested part is computed: `permute_positions` is a Feistel network, which takes 64-bit arithmetic and no
// memory except for the result. All arithmetic is modulo 2^64. The steps have the same names as in
// randomness.py, which explains them.
//
// Launch: any grid, one-dimensional blocks. Declaration and twin: shuffle.py.

using Word = unsigned long long;

struct Network {
    Word keys[10];  // for both halves in each of five rounds
};

__device__ inline Word hash_position(Word position, Word key) {
    Word word = position * 0x9e3779b97f4a7c15ull + (key + 0x9e3779b97f4a7c15ull);
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
    return word ^ (word >> 31);
}

// (half + hash of other) mod size
__device__ inline Word shifted(Word half, Word other, Word size, Word key) {
    const Word sum = half + (((hash_position(other, key) >> 32) * size) >> 32);
    return sum < size ? sum : sum - size;
}

__device__ inline Word permute_cell(Word cell, Word rows, Word columns, const Network& network) {
    Word left = cell / columns, right = cell % columns;
    for (int turn = 0; turn < 5; ++turn) {
        left = shifted(left, right, rows, network.keys[2 * turn]);
        right = shifted(right, left, columns, network.keys[2 * turn + 1]);
    }
    return left * columns + right;
}

extern "C" __global__ void hash_numbers(Word* hashes, Word count, Word low, Word key) {
    for (Word i = static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<Word>(gridDim.x) * blockDim.x) {
        hashes[i] = (hash_position(i, key) & ~low) | i;
    }
}

// `out` may be `hashes` itself, but must not overlap it otherwise.
extern "C" __global__ void take_numbers(const Word* hashes, long long* out, Word start, Word amount, Word low) {
    for (Word i = static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x; i < amount;
         i += static_cast<Word>(gridDim.x) * blockDim.x) {
        out[i] = static_cast<long long>(hashes[start + i] & low);
    }
}

extern "C" __global__ void permute_positions(long long* out, Word start, Word amount, Word count, Word rows,
                                             Word columns, const __grid_constant__ Network network) {
    for (Word i = static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x; i < amount;
         i += static_cast<Word>(gridDim.x) * blockDim.x) {
        Word image = start + i;
        do {
            image = permute_cell(image, rows, columns, network);
        } while (image >= count);
        out[i] = static_cast<long long>(image);
    }
}
