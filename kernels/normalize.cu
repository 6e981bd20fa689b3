// normalize: images to floats, one multiply-add each, with crop, flip and change of layout in the same pass.
//
// What bounds it is memory: 1 or 4 bytes read and 2 or 4 written a value, against one fma. So every value is
// read once and written once, and what is left is how lanes of a warp meet the lines of memory.
//  * To planes (CHW) a thread makes 4 pixels of a row in all channels. Each channel is one store of 8 or 16
//    bytes, neighbours beside neighbours: whole lines. Reads from planes are as even, turned around where a
//    row is flipped. Reads from pixels (HWC) are `channels` apart, but a warp's loads of one step cover a
//    contiguous run of 128 pixels, which the first of them brings into L1: as many bytes from DRAM as there
//    are, and more load instructions, of which a memory-bound kernel has some to spare.
//  * To pixels (HWC) a thread makes 4 values of a row, whatever channels they are: again stores of 8 or 16
//    bytes, whole lines. Lanes then want the constants of different channels, which the constant cache
//    serves one after another, `channels` at most.
// A store falls back to single values at the end of a row, and where a row does not start on a boundary.
//
// The constants come by value, in the kernel's parameters: a launch allocates and copies nothing. Divisions
// are one or two of 32 bits a thread; samples are told apart by the grid's y.
//
// A window is top, left and flip; see windows.cuh.
//
// Subnormals, of inputs and results, are kept; see numbers.cuh.
//
// Launch: any grid, blocks in one dimension. Twin and launcher: normalize.py.

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

// Where the values of one sample's window lie: at start + y * row + x * pixel + channel * plane.
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

// Pixels x to x + 3 of row y, in all channels.
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

// Values `first` to first + 3 of row y, pixels and channels in turn.
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
