// normalize: converts images to floats with one multiply-add per value; crops, mirrors and changes the layout
// in the same pass.
//
// Memory-bound: per value it reads 1 or 4 bytes, writes 2 or 4, and computes one fma. So every value is read
// once and written once; what remains is how a warp's lanes access cache lines, and how many instructions that
// takes.
//  * To planes (CHW), a thread writes 4 pixels of a row in all channels. Each channel is one store of 8 or 16
//    bytes, next to those of the neighboring threads, so stores fill whole lines. The 4 pixels are adjacent in
//    the source, mirrored or not. So their bytes are loaded 4 at a time: 12 bytes of three channels (HWC), or 4
//    of each plane; see wide.cuh. Floats, and bytes of other numbers of channels in HWC, are loaded one by one.
//    Lanes then load `channels` values apart, but all loads of a warp span the same run of 128 pixels, which the
//    first load brings into L1.
//  * To pixels (HWC), a thread writes 16 bytes of a row, which are 4 or 8 values, whatever their channels. From
//    HWC, unless mirrored, these values are adjacent and loaded at once; bytes of three channels also if mirrored.
//    For one channel and for three, no thread divides by a variable or looks its constants up by number.
// At the end of a row, or if a row does not start at an aligned address, values are stored one at a time.
//
// The constants are passed by value, as kernel parameters, so a launch allocates and copies nothing. The grid's y
// counts samples, and its x and the block's y count rows, so no thread divides to find its row.
//
// A window is (top, left, flip); see windows.cuh.
//
// Subnormal inputs and results are kept; see numbers.cuh.
//
// Launch: any grid, one- or two-dimensional blocks of up to 256 threads. Declaration and twin: normalize.py.

#include "numbers.cuh"
#include "wide.cuh"
#include "windows.cuh"

struct Channels {
    float factor[16];
    float offset[16];
};

struct Images {
    unsigned samples;
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

// Stores `count` values, one at a time unless the caller knows that four fit an aligned address.
template <bool is_wide, typename Target>
__device__ inline void store(const float (&values)[4], Target* out, int count) {
    Four<Target> four;
    for (int i = 0; i < 4; ++i) {
        encode(values[i], four.at[i]);
    }
    if constexpr (is_wide) {
        *reinterpret_cast<Four<Target>*>(out) = four;
    } else {
        for (int i = 0; i < 4; ++i) {
            if (i < count) {
                out[i] = four.at[i];
            }
        }
    }
}

// The values of a row of pixels that a thread writes, and how many they are.
template <typename Target>
constexpr int MOST = 16 / sizeof(Target);

template <typename Target>
struct alignas(16) Most {
    Target at[MOST<Target>];
};

// Stores values of a row of pixels; whole ones only where four of them fit an aligned address.
template <bool is_whole, typename Target>
__device__ inline void store_pixels(const float (&values)[MOST<Target>], Target* out, int count) {
    Most<Target> most;
    for (int i = 0; i < MOST<Target>; ++i) {
        encode(values[i], most.at[i]);
    }
    if constexpr (!is_whole) {
        for (int i = 0; i < MOST<Target>; ++i) {
            if (i < count) {
                out[i] = most.at[i];
            }
        }
    } else if (address_of(out) % sizeof(most) == 0) {
        *reinterpret_cast<Most<Target>*>(out) = most;
    } else {
        for (int i = 0; i < MOST<Target>; i += 4) {
            *reinterpret_cast<Four<Target>*>(out + i) = *reinterpret_cast<const Four<Target>*>(most.at + i);
        }
    }
}

template <typename Target>
__device__ inline void store(const float (&values)[4], Target* out, int count) {
    if (count >= 4 && is_aligned(out)) {
        store<true>(values, out, 4);
    } else {
        store<false>(values, out, count);
    }
}

// Writes four neighboring pixels to `channels` planes; their bytes are adjacent, from `pixels` on.
template <int channels, bool is_wide, typename Target>
__device__ inline void make_planes_of_bytes(const unsigned char* pixels, Target* out, const Channels& constants,
                                            int channel, bool is_flipped, int plane, const Extent& array) {
    const Parts<channels> parts = load_parts<channels>(pixels, array);
    for (int i = 0; i < channels; ++i) {
        float values[4];
        for (int pixel = 0; pixel < 4; ++pixel) {
            const int byte = pixel * channels + i;
            const float value = byte_to_float(parts.at[byte / 4], byte % 4);
            values[pixel] =
                multiply_add(value, constants.factor[channel + i], constants.offset[channel + i]);
        }
        const float turned[4] = {is_flipped ? values[3] : values[0], is_flipped ? values[2] : values[1],
                                 is_flipped ? values[1] : values[2], is_flipped ? values[0] : values[3]};
        store<is_wide>(turned, out, 4);
        out += plane;
    }
}

// Writes pixels x to x + 3 of row y, in all channels.
template <typename Source, typename Target>
__device__ inline void make_planes(const Source* sample, Target* out, const Images& images,
                                   const Channels& channels, const Window& window, int y, int x,
                                   [[maybe_unused]] const Extent& array) {
    const int count = images.out_width - x, plane = images.out_height * images.out_width;
    const Source* from = sample + window.start + y * window.row + x * window.pixel;
    Target* to = out + y * images.out_width + x;
    if constexpr (sizeof(Source) == 1) {
        const bool is_flipped = window.pixel < 0, is_one = images.channels == 1;
        const Source* lowest = is_flipped ? from + 3 * window.pixel : from;
        const bool is_wide = is_aligned(to) && plane % 4 == 0;
        if (count >= 4 && images.channels == 3 && !images.planar) {
            if (is_wide) {
                make_planes_of_bytes<3, true>(lowest, to, channels, 0, is_flipped, plane, array);
            } else {
                make_planes_of_bytes<3, false>(lowest, to, channels, 0, is_flipped, plane, array);
            }
            return;
        }
        if (count >= 4 && (images.planar || is_one)) {
            for (int channel = 0; channel < images.channels; ++channel) {
                if (is_wide) {
                    make_planes_of_bytes<1, true>(lowest, to, channels, channel, is_flipped, plane, array);
                } else {
                    make_planes_of_bytes<1, false>(lowest, to, channels, channel, is_flipped, plane, array);
                }
                lowest += window.plane;
                to += plane;
            }
            return;
        }
    }
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
        to += plane;
    }
}

// Loads neighboring values of a row of pixels.
template <int most>
__device__ inline void load_pixels(const unsigned char* from, float (&values)[most], const Extent& array) {
    const Wide<most / 4> parts = load_wide<most / 4>(from, array);
    for (int i = 0; i < most; ++i) {
        values[i] = byte_to_float(parts.at[i / 4], i % 4);
    }
}

template <int most>
__device__ inline void load_pixels(const float* from, float (&values)[most], const Extent&) {
    if (is_aligned(from)) {
        for (int i = 0; i < most; i += 4) {
            const Four<float> four = *reinterpret_cast<const Four<float>*>(from + i);
            for (int part = 0; part < 4; ++part) {
                values[i + part] = four.at[part];
            }
        }
        return;
    }
    for (int i = 0; i < most; ++i) {
        values[i] = from[i];
    }
}

// Returns a channel's constant; of few channels without an indexed load, whose lanes would take turns.
template <int channels>
__device__ inline float pick(const float (&constants)[16], int channel) {
    if constexpr (channels == 1) {
        return constants[0];
    } else if constexpr (channels == 3) {
        return channel == 0 ? constants[0] : channel == 1 ? constants[1] : constants[2];
    } else {
        return constants[channel];
    }
}

// Computes the results of neighboring values, of which the first is of channel `channel`.
template <int fixed, int most>
__device__ inline void convert(float (&values)[most], const Channels& channels, int channel, int many) {
    constexpr int apart = fixed ? fixed : most;  // the values of a channel, as far as is known here
    float factors[apart], offsets[apart];
    for (int i = 0; i < apart; ++i) {
        factors[i] = pick<fixed>(channels.factor, channel);
        offsets[i] = pick<fixed>(channels.offset, channel);
        channel = channel + 1 == many ? 0 : channel + 1;
    }
    for (int i = 0; i < most; ++i) {
        values[i] = multiply_add(values[i], factors[i % apart], offsets[i % apart]);
    }
}

// Writes the values from `first` on of row y, where the channels of a pixel are adjacent; `fixed` is the number
// of channels, or 0 for images.channels.
template <int fixed, typename Source, typename Target>
__device__ inline void make_pixels(const Source* sample, Target* out, const Images& images,
                                   const Channels& channels, const Window& window, int y, int first,
                                   const Extent& array) {
    constexpr int most = MOST<Target>;
    const int many = fixed ? fixed : images.channels;
    const int row = images.out_width * many, count = row - first;
    const Source* from = sample + window.start + y * window.row;
    Target* to = out + y * row + first;
    const int x = first / many, channel = first - x * many;
    float values[most] = {};
    if (count >= most && window.plane == 1 && is_aligned(to)) {
        if (window.pixel > 0) {
            load_pixels(from + first, values, array);
            convert<fixed>(values, channels, channel, many);
            store_pixels<true>(values, to, most);
            return;
        }
        if constexpr (fixed == 3 && sizeof(Source) == 1) {
            const Parts<most / 4> parts =
                load_mirrored<most / 4>(from + 3, static_cast<unsigned>(first), array);
            for (int i = 0; i < most; ++i) {
                values[i] = byte_to_float(parts.at[i / 4], i % 4);
            }
            convert<fixed>(values, channels, channel, many);
            store_pixels<true>(values, to, most);
            return;
        }
    }
    for (int i = 0, column = x, part = channel; i < most && i < count; ++i) {
        values[i] = static_cast<float>(from[column * window.pixel + part * window.plane]);
        if (++part == many) {
            part = 0;
            ++column;
        }
    }
    convert<fixed>(values, channels, channel, many);
    store_pixels<false>(values, to, count);
}

// Calls a function for the parts of rows that are a thread's, with a row and where the part begins.
template <typename Make>
__device__ inline void for_each(const Images& images, unsigned row, unsigned each, const Make& make) {
    for (unsigned y = blockIdx.x * blockDim.y + threadIdx.y; y < static_cast<unsigned>(images.out_height);
         y += gridDim.x * blockDim.y) {
        for (unsigned part = threadIdx.x; part * each < row; part += blockDim.x) {
            make(static_cast<int>(y), static_cast<int>(part * each));
        }
    }
}

// Numbers of 16 bits take as many instructions for half the bytes, so more warps have to be ready. Eight blocks on each
// multiprocessor, where it holds 2,048 threads, leave 32 registers to each: an H200 makes 1,024 images of 224 x 224 in
// 135 instead of 144 µs. Those of 32 bits would take 5 % longer that way.
#define HOLDS_2048_THREADS \
    (__CUDA_ARCH__ / 100 < 8 && __CUDA_ARCH__ != 750 || __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || \
     __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1030)

template <typename Source, typename Target>
__global__ void __launch_bounds__(256, sizeof(Target) == 2 && (HOLDS_2048_THREADS) ? 8 : 1)
    normalize(const Source* __restrict__ source, const int* __restrict__ windows, Target* __restrict__ out,
              const __grid_constant__ Images images, const __grid_constant__ Channels channels) {
    const unsigned row = images.out_planar ? images.out_width : images.out_width * images.channels;
    const unsigned each = images.out_planar ? 4 : MOST<Target>;
    const unsigned values = static_cast<unsigned>(images.channels * images.height * images.width);
    const unsigned out_values = static_cast<unsigned>(images.channels * images.out_height * images.out_width);
    const Extent array{address_of(source),
                       address_of(source + static_cast<unsigned long long>(images.samples) * values)};
    for (unsigned sample = blockIdx.y; sample < images.samples; sample += gridDim.y) {
        const unsigned long long number = sample;
        const Window window = find_window(images, windows == nullptr ? nullptr : windows + number * 3);
        const Source* from = source + number * values;
        Target* to = out + number * out_values;
        if (images.out_planar) {
            for_each(images, row, each, [&](int y, int x) {
                make_planes(from, to, images, channels, window, y, x, array);
            });
        } else if (images.channels == 3) {
            for_each(images, row, each, [&](int y, int first) {
                make_pixels<3>(from, to, images, channels, window, y, first, array);
            });
        } else if (images.channels == 1) {
            for_each(images, row, each, [&](int y, int first) {
                make_pixels<1>(from, to, images, channels, window, y, first, array);
            });
        } else {
            for_each(images, row, each, [&](int y, int first) {
                make_pixels<0>(from, to, images, channels, window, y, first, array);
            });
        }
    }
}
