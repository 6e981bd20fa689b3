// pad: turns rows of varying length, stored one after another, into a dense array; short rows are filled
// up.
//
// A row's steps are contiguous in the source and in the result, so a row is a copy followed by a fill. Words
// have 16, 8, 4, 2 or 1 bytes, as large as a step and both addresses allow; neighboring lanes access
// neighboring words, as in gather.cu. The fill is one element, repeated to 16 bytes. Rows start on element
// boundaries, so a word's position in its row determines which part of the pattern it takes.
//
// Rows longer than the result are truncated. Splits that decrease or lie outside the values are clamped: nothing
// outside may be read, and the host cannot check splits without waiting for the device.
//
// Launch: any grid, two-dimensional blocks of any size. Declaration and twin: pad.py.

struct alignas(16) Pattern {
    unsigned char bytes[16];
};

struct Rows {
    unsigned long long rows, longest, steps;
    unsigned long long words;  // per step
};

__device__ inline unsigned long long moved_inside(long long split, unsigned long long low,
                                                  unsigned long long high) {
    const unsigned long long place = split < 0 ? 0 : static_cast<unsigned long long>(split);
    return place < low ? low : place > high ? high : place;
}

template <typename Word>
__device__ inline Word part_of(const Pattern& pattern, unsigned long long word) {
    return reinterpret_cast<const Word*>(pattern.bytes)[word % (sizeof(Pattern) / sizeof(Word))];
}

template <typename Word>
__global__ void pad(const void* __restrict__ values, const long long* __restrict__ splits,
                    void* __restrict__ out, bool* __restrict__ mask, const __grid_constant__ Rows shape,
                    const __grid_constant__ Pattern pattern) {
    const unsigned long long first = static_cast<unsigned long long>(blockIdx.y) * blockDim.x + threadIdx.x;
    const unsigned long long step = static_cast<unsigned long long>(gridDim.y) * blockDim.x;
    for (unsigned long long row = static_cast<unsigned long long>(blockIdx.x) * blockDim.y + threadIdx.y;
         row < shape.rows; row += static_cast<unsigned long long>(gridDim.x) * blockDim.y) {
        const unsigned long long begin = moved_inside(splits[row], 0, shape.steps);
        const unsigned long long length = moved_inside(splits[row + 1], begin, shape.steps) - begin;
        const Word* from = static_cast<const Word*>(values) + begin * shape.words;
        Word* to = static_cast<Word*>(out) + row * shape.longest * shape.words;
        for (unsigned long long word = first; word < shape.longest * shape.words; word += step) {
            to[word] = word < length * shape.words ? from[word] : part_of<Word>(pattern, word);
        }
        if (mask != nullptr) {
            for (unsigned long long place = first; place < shape.longest; place += step) {
                mask[row * shape.longest + place] = place < length;
            }
        }
    }
}
