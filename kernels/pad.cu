// pad: rows of varying length, one behind the other, to one dense array; what is short is filled up.
//
// A row's steps lie together in the source and in the result, so a row is a copy followed by a fill: words of
// 16, 8, 4, 2 or 1 bytes, as large as a step and both addresses allow, and lanes side by side as in gather.cu.
// The fill is one element, repeated to 16 bytes; a step begins an element, so a word's place in its row says
// which part of the pattern it takes.
//
// A row longer than the result is cut. Splits that go backwards or beyond the values are moved inside, since
// nothing may be read from outside and the host cannot look at them without waiting.
//
// Launch: any grid, any block in two dimensions. Twin and launcher: pad.py.

struct alignas(16) Pattern {
    unsigned char bytes[16];
};

struct Rows {
    unsigned long long rows, longest, steps;
    unsigned long long words;  // of a step
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
