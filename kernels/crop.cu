// crop: copies a window of each image, mirrored left to right on request.
//
// Elements are copied as bits, so that dtypes of one size share a kernel. A thread writes 4 elements of a row
// of the result: one store of 4 to 16 bytes (two of 16 for 8-byte elements). Neighboring threads store to
// neighboring addresses, so stores fill whole cache lines; so do loads, in reverse order if the row is
// mirrored. HWC and CHW are one case: an image has `planes` planes of rows, a row has pixels, and a pixel has
// `pixel` elements. At the end of a row, or if the address is not aligned, elements are stored one at a time.
//
// A window is (top, left, flip); see windows.cuh.
//
// Launch: any grid, one-dimensional blocks. Twin and launcher: crop.py.

#include "numbers.cuh"
#include "windows.cuh"

struct Pictures {
    unsigned long long samples;
    int planes, height, width, pixel;
    int out_height, out_width;
};

// Writes elements `first` to first + 3 of a row of the result; `row` is the start of the window in its row.
template <typename Word>
__device__ inline void make_four(const Word* row, Word* out, const Pictures& pictures, bool is_flipped,
                                 int first) {
    const int size = pictures.out_width * pictures.pixel;
    int x = first / pictures.pixel, part = first - x * pictures.pixel;
    Four<Word> four = {};
    for (int i = 0; i < 4; ++i) {
        if (first + i < size) {
            const int from = is_flipped ? pictures.out_width - 1 - x : x;
            four.at[i] = row[from * pictures.pixel + part];
        }
        if (++part == pictures.pixel) {
            part = 0;
            ++x;
        }
    }
    if (first + 4 <= size && is_aligned(out)) {
        *reinterpret_cast<Four<Word>*>(out) = four;
        return;
    }
    for (int i = 0; i < 4; ++i) {
        if (first + i < size) {
            out[i] = four.at[i];
        }
    }
}

template <typename Word>
__global__ void crop(const void* __restrict__ source, const int* __restrict__ windows, void* __restrict__ out,
                     const __grid_constant__ Pictures pictures) {
    const int row = pictures.width * pictures.pixel, out_row = pictures.out_width * pictures.pixel;
    const int fours = out_row / 4 + (out_row % 4 != 0);
    const unsigned rows = static_cast<unsigned>(pictures.planes) * static_cast<unsigned>(pictures.out_height);
    const unsigned items = rows * static_cast<unsigned>(fours);
    for (unsigned long long sample = blockIdx.y; sample < pictures.samples; sample += gridDim.y) {
        const int* window = windows + sample * 3;
        const int top = moved_inside(window[0], pictures.height - pictures.out_height);
        const int left = moved_inside(window[1], pictures.width - pictures.out_width);
        const unsigned long long planes = sample * static_cast<unsigned long long>(pictures.planes);
        const Word* from = static_cast<const Word*>(source) + planes * pictures.height * row;
        Word* to = static_cast<Word*>(out) + planes * pictures.out_height * out_row;
        for (unsigned item = blockIdx.x * blockDim.x + threadIdx.x; item < items;
             item += gridDim.x * blockDim.x) {
            const int line = static_cast<int>(item / static_cast<unsigned>(fours));
            const int first = (static_cast<int>(item) - line * fours) * 4;
            const int plane = line / pictures.out_height;
            const int y = plane * pictures.height + top + line - plane * pictures.out_height;
            make_four(from + y * row + left * pictures.pixel, to + line * out_row + first, pictures,
                      window[2] != 0, first);
        }
    }
}
