// pad: turns rows of varying length, stored one after another, into a dense array; short rows are filled
// up.
//
// A row's steps are contiguous in the source and in the result, so a row is a copy followed by a fill. A thread
// writes words of 16, 8 or 4 bytes, as large as the result's rows and address allow; neighboring lanes write
// neighboring words, as in gather.cu. A row begins anywhere in the source, so its words are cut out of aligned
// loads; see wide.cuh. Where a row ends within a word, the fill takes the rest. The fill is one element, repeated to
// 16 bytes: a word's position in its row tells which part of it belongs there.
//
// Rows of the result that are no multiple of 4 bytes are written in words of 1 or 2, which are no larger than an
// element.
//
// Rows longer than the result are truncated. Splits that decrease or lie outside the values are clamped: nothing
// outside may be read, and the host cannot check splits without waiting for the device.
//
// Launch: any grid, two-dimensional blocks of any size. Declaration and twin: pad.py.

#include "wide.cuh"

using Size = unsigned long long;

struct Rows {
    Size rows, longest, steps;
    Size step;  // in bytes
};

__device__ inline Size moved_inside(long long split, Size low, Size high) {
    const Size place = split < 0 ? 0 : static_cast<Size>(split);
    return place < low ? low : place > high ? high : place;
}

// How many of four things from `first` on come before `end`.
__device__ inline unsigned count_before(Size first, Size end) {
    return first >= end ? 0 : end - first < 4 ? static_cast<unsigned>(end - first) : 4;
}

// Byte `byte` of a row and what follows it: from the source before byte `length`, and then the fill.
template <int count>
__device__ inline void make_word(const unsigned char* from, Size byte, Size length, const Wide<4>& fill,
                                 const Extent& array, Wide<count>& word) {
    if (byte < length) {
        const unsigned char* const place = from + byte;
        const bool is_inside = address_of(place) + sizeof(word) <= array.end;  // the last row may end within it
        const Parts<count> parts =
            is_inside ? load_parts<count>(place, array) : load_bytes<Parts<count>, count>(place, array);
        for (int i = 0; i < count; ++i) {
            word.at[i] = parts.at[i];
        }
    }
    if (byte + sizeof(word) > length) {
        for (int i = 0; i < count; ++i) {
            const unsigned kept = static_cast<unsigned>((1ull << 8 * count_before(byte + 4 * i, length)) - 1);
            word.at[i] = (word.at[i] & kept) | (fill.at[byte / 4 % 4 / count * count + i] & ~kept);
        }
    }
}

template <typename Word>
__device__ inline void make_word(const unsigned char* from, Size byte, Size length, const Wide<4>& fill,
                                 const Extent&, Word& word) {
    word = byte < length ? *reinterpret_cast<const Word*>(from + byte)
                         : static_cast<Word>(fill.at[byte / 4 % 4] >> byte % 4 * 8);
}

template <typename Word>
__global__ void pad(const void* __restrict__ values, const long long* __restrict__ splits,
                    void* __restrict__ out, const __grid_constant__ Rows shape,
                    const __grid_constant__ Wide<4> fill) {
    const unsigned char* source = static_cast<const unsigned char*>(values);
    const Size first = static_cast<Size>(blockIdx.y) * blockDim.x + threadIdx.x;
    const Size lanes = static_cast<Size>(gridDim.y) * blockDim.x;
    const Extent array{address_of(source), address_of(source + shape.steps * shape.step)};
    for (Size row = static_cast<Size>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows;
         row += static_cast<Size>(gridDim.x) * blockDim.y) {
        const Size begin = moved_inside(splits[row], 0, shape.steps);
        const Size length = moved_inside(splits[row + 1], begin, shape.steps) - begin;
        const unsigned char* from = source + begin * shape.step;
        unsigned char* to = static_cast<unsigned char*>(out) + row * shape.longest * shape.step;
        for (Size byte = first * sizeof(Word); byte < shape.longest * shape.step; byte += lanes * sizeof(Word)) {
            Word word = {};
            make_word(from, byte, length * shape.step, fill, array, word);
            *reinterpret_cast<Word*>(to + byte) = word;
        }
    }
}
