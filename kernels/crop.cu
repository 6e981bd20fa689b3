// crop: copies a window of each image, mirrored left to right on request.
//
// Everything is counted in bytes, so all dtypes share a kernel. HWC and CHW are one case: an image has `planes`
// planes of rows, a row has pixels, and a pixel has `pixel` bytes. The grid and the block count samples, planes
// and rows, so no thread divides to find its row.
//
// A lane stores one word of a row of the result: 16 bytes if all rows begin at multiples of 16, else 8 or 4.
// Neighboring lanes store neighboring words, so stores fill whole cache lines. The window may begin at any byte,
// so a word is cut out of two aligned loads; see wide.cuh. A mirrored word is loaded from the other end of the
// row and reversed, if its pixels fill it evenly. Pixels of three bytes are put together from the words that they
// lie in, and all others from bytes. If rows do not begin at multiples of 4, the ends of a row are stored byte by byte.
//
// A window is (top, left, flip); see windows.cuh.
//
// Launch: any grid, one- or two-dimensional blocks. Declaration and twin: crop.py. `erase`, at the end, fills windows.

#include "wide.cuh"
#include "windows.cuh"

struct Batch {
    unsigned samples, planes, height, width, pixel;
    unsigned out_height, out_width;
};

// A row of the result, and where it is copied from.
struct Line {
    const unsigned char* from;
    unsigned char* to;
    int size, pixel;
    bool is_flipped;
};

// Returns the byte of the source that becomes byte `position` of the line, where `part` is its place in a pixel.
__device__ inline const unsigned char* find_byte(const Line& line, int position, int part) {
    return line.from + (line.is_flipped ? line.size - line.pixel - position + 2 * part : position);
}

template <int count>
__device__ inline Wide<count> load_mirrored_bytes(const Line& line, int first) {
    Wide<count> word = {};
    int part = first % line.pixel;
    const unsigned char* from = find_byte(line, first, part);
    for (int byte = 0; byte < 4 * count; ++byte) {
        word.at[byte / 4] |= static_cast<unsigned>(*from) << byte % 4 * 8;
        ++from;
        if (++part == line.pixel) {
            part = 0;
            from -= 2 * line.pixel;
        }
    }
    return word;
}

// Reverses the pixels of a word; a pixel has 1, 2, 4, 8 or 16 bytes, and no more than the word.
template <int count>
__device__ inline Wide<count> reverse(const Wide<count>& word, int pixel) {
    Wide<count> result;
    for (int i = 0; i < count; ++i) {
        const unsigned mirrored = word.at[count - 1 - i];
        const unsigned halves = mirrored >> 16 | mirrored << 16;
        const unsigned bytes = (halves & 0x00ff00ffu) << 8 | (halves >> 8 & 0x00ff00ffu);
        const unsigned paired = word.at[(i + count / 2) % count];
        result.at[i] = pixel == 1 ? bytes : pixel == 2 ? halves : pixel == 4 ? mirrored : paired;
    }
    return pixel == 4 * count ? word : result;
}

template <int count>
__device__ inline void copy_line(const Line& line, const Extent& source) {
    constexpr int width = 4 * count;
    const int ahead = static_cast<int>(address_of(line.to) % width);  // bytes of its first word before the line
    const int low = line.pixel - 1;  // a mask, if pixels fill words evenly
    const bool in_reverse = (line.pixel & low) == 0 && line.pixel <= width && (ahead & low) == 0;
    for (int first = static_cast<int>(threadIdx.x) * width - ahead; first < line.size;
         first += static_cast<int>(blockDim.x) * width) {
        if (first < 0 || first + width > line.size) {
            const int begin = first < 0 ? 0 : first, end = first + width < line.size ? first + width : line.size;
#pragma unroll 1
            for (int position = begin; position < end; ++position) {
                const int part = line.is_flipped ? position % line.pixel : 0;
                line.to[position] = *find_byte(line, position, part);
            }
            continue;
        }
        Wide<count> word;
        if (!line.is_flipped) {
            word = load_wide<count>(line.from + first, source);
        } else if (in_reverse) {
            word = reverse(load_wide<count>(line.from + line.size - first - width, source), line.pixel);
        } else if (line.pixel == 3) {
            const Parts<count> parts =
                load_mirrored<count>(line.from + line.size, static_cast<unsigned>(first), source);
            for (int i = 0; i < count; ++i) {
                word.at[i] = parts.at[i];
            }
        } else {
            word = load_mirrored_bytes<count>(line, first);
        }
        *reinterpret_cast<Wide<count>*>(line.to + first) = word;
    }
}

template <typename Word>
__global__ void crop(const void* __restrict__ source, const int* __restrict__ windows, void* __restrict__ out,
                     const __grid_constant__ Batch batch) {
    const unsigned row = batch.width * batch.pixel, out_row = batch.out_width * batch.pixel;
    const unsigned rows = batch.samples * batch.planes * batch.height;  // of all images
    const Extent array{address_of(source), address_of(source) + static_cast<Address>(rows) * row};
    for (unsigned sample = blockIdx.y; sample < batch.samples; sample += gridDim.y) {
        const int* window = windows + static_cast<Address>(sample) * 3;
        const int top = moved_inside(window[0], static_cast<int>(batch.height - batch.out_height));
        const int left = moved_inside(window[1], static_cast<int>(batch.width - batch.out_width));
        const bool is_flipped = window[2] != 0;
        for (unsigned number = blockIdx.z; number < batch.planes; number += gridDim.z) {
            const unsigned plane = sample * batch.planes + number;
            const unsigned from = plane * batch.height + static_cast<unsigned>(top);
            const unsigned to = plane * batch.out_height;
            const unsigned char* begin = static_cast<const unsigned char*>(source) + left * batch.pixel;
            for (unsigned y = blockIdx.x * blockDim.y + threadIdx.y; y < batch.out_height;
                 y += gridDim.x * blockDim.y) {
                const Line line{begin + static_cast<Address>(from + y) * row,
                                static_cast<unsigned char*>(out) + static_cast<Address>(to + y) * out_row,
                                static_cast<int>(out_row), static_cast<int>(batch.pixel), is_flipped};
                copy_line<sizeof(Word) / 4>(line, array);
            }
        }
    }
}

// erase: fills a rectangle of each image with a color, in place.
//
// Only the rectangles are written. A block's lanes write neighboring values of a rectangle's row, then those of
// the next row. Only the device knows how large the rectangles are, so there are as many blocks as a whole image
// would keep busy; blocks with nothing to do end immediately. Values are written as bits, so that dtypes of the
// same size share a kernel.
//
// Nothing outside an image may be written, and the host cannot check rectangles on the device without waiting
// for it. So parts beyond the edge are cut off.
//
// Launch: any grid, one-dimensional blocks.

struct Images {
    unsigned samples, channels, height, width;
    unsigned planar;   // 1: CHW, 0: HWC
    unsigned colored;  // 1: a value for each channel, 0: one for all
};

struct Color {
    unsigned long long bits[64];
};

// The part of an axis that a rectangle covers.
struct Reach {
    unsigned first, count;
};

__device__ inline Reach find_reach(int first, int count, unsigned length) {
    const long long end = static_cast<long long>(first) + count;
    const long long low = first < 0 ? 0 : first, high = end < length ? end : length;
    return {static_cast<unsigned>(low), static_cast<unsigned>(high > low ? high - low : 0)};
}

template <typename Word>
__global__ void erase(void* __restrict__ values, const int* __restrict__ windows,
                      const __grid_constant__ Images images, const __grid_constant__ Color color) {
    const unsigned planes = images.planar ? images.channels : 1, pixel = images.planar ? 1 : images.channels;
    const unsigned line = images.width * pixel;
    for (unsigned sample = blockIdx.y; sample < images.samples; sample += gridDim.y) {
        const int* const window = windows + static_cast<unsigned long long>(sample) * 4;
        const Reach rows = find_reach(window[0], window[2], images.height);
        const Reach columns = find_reach(window[1], window[3], images.width);
        const unsigned across = columns.count * pixel, count = planes * rows.count * across;
        const unsigned long long size = static_cast<unsigned long long>(planes) * images.height * line;
        Word* const image = static_cast<Word*>(values) + sample * size;
        for (unsigned item = blockIdx.x * blockDim.x + threadIdx.x; item < count; item += gridDim.x * blockDim.x) {
            const unsigned row = item / across, x = item - row * across;
            const unsigned plane = images.planar ? row / rows.count : 0, y = row - plane * rows.count;
            const unsigned channel = images.planar ? plane : x % pixel;
            Word* const to = image + (plane * images.height + rows.first + y) * line + columns.first * pixel + x;
            *to = static_cast<Word>(color.bits[images.colored ? channel : 0]);
        }
    }
}
