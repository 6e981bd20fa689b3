// normalize: converts images to floats with one multiply-add per value; crops, mirrors and changes the layout
// in the same pass.
//
// Memory-bound: per value it reads 1 or 4 bytes, writes 2 or 4, and computes one fma. So every value is read
// once and written once; what remains is how a warp's lanes access cache lines.
//  * To planes (CHW), a thread writes 4 pixels of a row in all channels. Each channel is one store of 8 or 16
//    bytes, next to those of the neighboring threads, so stores fill whole lines. Loads from planes are as
//    regular, in reverse order if the row is mirrored. Loads from pixels (HWC) are `channels` apart. But each
//    of a warp's loads spans the same contiguous run of 128 pixels, which the first load brings into L1. So
//    no byte is read from DRAM twice; only the number of load instructions grows, which a memory-bound kernel
//    can afford.
//  * To pixels (HWC), a thread writes 4 values of a row, whatever their channels. Stores are again 8 or 16
//    bytes and fill whole lines. Lanes then need the constants of different channels, which the constant
//    cache serves one after another, at most `channels` times.
// At the end of a row, or if a row does not start at an aligned address, values are stored one at a time.
//
// The constants are passed by value, as kernel parameters, so a launch allocates and copies nothing. A thread
// needs one or two 32-bit divisions; the grid's y tells samples apart.
//
// A window is (top, left, flip); see windows.cuh.
//
// Subnormal inputs and results are kept; see numbers.cuh.
//
// Launch: any grid, one-dimensional blocks. Twin and launcher: normalize.py.

#include "numbers.cuh"
#include "windows.cuh"

struct Channels {
    float factor[16];
    float offset[16];
};

struct Images {
    unsigned long long samples;
    int channels, height, width;
    int out_height, out_width;
    int planar, out_planar;  // 1: CHW, 0: HWC
};

// Locates the values of a sample's window: they are at start + y * row + x * pixel + channel * plane.
struct Window {
    int start, row, pixel, plane;
};

__device__ inline Window find_window(const Images& images, const int* window) {
    const int pixel = images.planar ? 1 : images.channels;
    const int row = images.width * pixel;
    const int plane = images.planar ? images.height * images.width : 1;
    if (window == nullptr) {
        return {0, row, pixel, plane};
    }
    const int top = moved_inside(window[0], images.height - images.out_height);
    const int left = moved_inside(window[1], images.width - images.out_width);
    if (window[2] == 0) {
        return {top * row + left * pixel, row, pixel, plane};
    }
    return {top * row + (left + images.out_width - 1) * pixel, row, -pixel, plane};
}

template <typename Target>
__device__ inline void store(const float (&values)[4], Target* out, int count) {
    Four<Target> four;
    for (int i = 0; i < 4; ++i) {
        encode(values[i], four.at[i]);
    }
    if (count >= 4 && is_aligned(out)) {
        *reinterpret_cast<Four<Target>*>(out) = four;
        return;
    }
    for (int i = 0; i < 4; ++i) {
        if (i < count) {
            out[i] = four.at[i];
        }
    }
}

// Writes pixels x to x + 3 of row y, in all channels.
template <typename Source, typename Target>
__device__ inline void make_planes(const Source* sample, Target* out, const Images& images,
                                   const Channels& channels, const Window& window, int y, int x) {
    const int count = images.out_width - x;
    const Source* from = sample + window.start + y * window.row + x * window.pixel;
    Target* to = out + y * images.out_width + x;
    for (int channel = 0; channel < images.channels; ++channel) {
        const float factor = channels.factor[channel], offset = channels.offset[channel];
        float values[4] = {};
        for (int i = 0; i < 4; ++i) {
            if (i < count) {
                values[i] = multiply_add(static_cast<float>(from[i * window.pixel]), factor, offset);
            }
        }
        store(values, to, count);
        from += window.plane;
        to += images.out_height * images.out_width;
    }
}

// Writes values `first` to first + 3 of row y, where the channels of a pixel are adjacent.
template <typename Source, typename Target>
__device__ inline void make_pixels(const Source* sample, Target* out, const Images& images,
                                   const Channels& channels, const Window& window, int y, int first) {
    const int row = images.out_width * images.channels;
    const Source* from = sample + window.start + y * window.row;
    int x = first / images.channels, channel = first - x * images.channels;
    float values[4] = {};
    for (int i = 0; i < 4; ++i) {
        if (first + i < row) {
            const float value = static_cast<float>(from[x * window.pixel + channel * window.plane]);
            values[i] = multiply_add(value, channels.factor[channel], channels.offset[channel]);
        }
        if (++channel == images.channels) {
            channel = 0;
            ++x;
        }
    }
    store(values, out + y * row + first, row - first);
}

template <typename Source, typename Target>
__global__ void normalize(const Source* __restrict__ source, const int* __restrict__ windows,
                          Target* __restrict__ out, const __grid_constant__ Images images,
                          const __grid_constant__ Channels channels) {
    const int row = images.out_planar ? images.out_width : images.out_width * images.channels;
    const int fours = row / 4 + (row % 4 != 0);
    const unsigned long long pixels = static_cast<unsigned long long>(images.channels) * images.height *
                                      images.width;
    const unsigned long long out_pixels = static_cast<unsigned long long>(images.channels) *
                                          images.out_height * images.out_width;
    const unsigned items = static_cast<unsigned>(images.out_height) * static_cast<unsigned>(fours);
    for (unsigned long long sample = blockIdx.y; sample < images.samples; sample += gridDim.y) {
        const Window window = find_window(images, windows == nullptr ? nullptr : windows + sample * 3);
        for (unsigned item = blockIdx.x * blockDim.x + threadIdx.x; item < items;
             item += gridDim.x * blockDim.x) {
            const int y = static_cast<int>(item / static_cast<unsigned>(fours));
            const int first = (static_cast<int>(item) - y * fours) * 4;
            const Source* from = source + sample * pixels;
            Target* to = out + sample * out_pixels;
            if (images.out_planar) {
                make_planes(from, to, images, channels, window, y, first);
            } else {
                make_pixels(from, to, images, channels, window, y, first);
            }
        }
    }
}
