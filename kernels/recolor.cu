// recolor: changes brightness, contrast, saturation and hue of pictures as Pillow does, bit for bit, in any order;
// then normalizes and changes the layout, in the same pass.
//
// This is a kernel of its own behind `resample`, because a change of contrast needs the mean of the whole gray
// picture: all of its pixels must be there, so they lie in memory as bytes, a quarter of what is written in the
// end. A chain without colors does not pay for that.
//
// The definition is that of Pillow's ImageEnhance: a picture is blended in float with a black one, with one of the
// mean of its gray, or with its gray; and that of torchvision's adjust_hue, which adds to the hue of Pillow's HSV.
// Its other conversions from and to HSV are integers here: over all 2^24 colors, they give the same.
//
// `measure` adds up the gray of a part of a picture, as it is before the change of contrast of a given number. So
// it runs once for each, and its sums are integers, whose order does not matter. Every block of `recolor`, and of a
// later `measure`, adds up the parts' sums.
//
// A picture's changes are pairs of floats: what to change (1 brightness, 2 contrast, 3 saturation, 4 hue; anything
// else changes nothing), and by how much. For a hue, that is an integer from 0 to 255.
//
// Launch: any grid, one-dimensional blocks. Declaration and twin: recolor.py.

#include "numbers.cuh"
#include "channels.cuh"

constexpr int PARTS = 32;  // of a picture, each added up by one block
constexpr int MOST = 8;    // changes of contrast
constexpr float BRIGHTNESS = 1.0f, CONTRAST = 2.0f, SATURATION = 3.0f, HUE = 4.0f;

struct Pictures {
    unsigned samples;
    unsigned pixels;  // of each picture
    unsigned planar;  // of the result; 1: CHW, 0: HWC
    unsigned row;     // numbers of a picture, which end with its changes
    unsigned first;   // the first one of the changes
    unsigned contrasts;
};

template <int channels>
struct Pixel {
    int at[channels];
};

// The changes of one picture, and its means before each change of contrast.
struct Changes {
    const float* pairs;
    unsigned count;
    const int* means;
    unsigned contrasts;  // whose means are known; no later change is made
};

__device__ inline int find_gray(const Pixel<1>& pixel) {
    return pixel.at[0];
}

__device__ inline int find_gray(const Pixel<3>& pixel) {
    return (pixel.at[0] * 19595 + pixel.at[1] * 38470 + pixel.at[2] * 7471 + 0x8000) >> 16;
}

// Comparisons with NaN are false.
__device__ inline int blend(int from, int byte, float amount) {
    const float blended = add(static_cast<float>(from), multiply(amount, static_cast<float>(byte - from)));
    return blended >= 255.0f ? 255 : blended > 0.0f ? static_cast<int>(blended) : 0;
}

template <int channels>
__device__ inline void blend_all(Pixel<channels>& pixel, int from, float amount) {
    for (int channel = 0; channel < channels; ++channel) {
        pixel.at[channel] = blend(from, pixel.at[channel], amount);
    }
}

// The hue is rounded as Pillow rounds it: quotients to float, and a turn of the color wheel by way of double.
__device__ inline int find_hue(const Pixel<3>& pixel, int most, int range) {
    const float width = static_cast<float>(range);
    float left[3];
    for (int channel = 0; channel < 3; ++channel) {
        left[channel] = __fdiv_rn(static_cast<float>(most - pixel.at[channel]), width);
    }
    float sector;
    if (pixel.at[0] == most) {
        sector = add(left[2], -left[1]);
    } else if (pixel.at[1] == most) {
        sector = round_to_float(__dsub_rn(__dadd_rn(2.0, float_to_double(left[0])), float_to_double(left[2])));
    } else {
        sector = round_to_float(__dsub_rn(__dadd_rn(4.0, float_to_double(left[1])), float_to_double(left[0])));
    }
    const double turn = __dadd_rn(__ddiv_rn(float_to_double(sector), 6.0), 1.0);
    const float fraction = round_to_float(turn >= 1.0 ? __dsub_rn(turn, 1.0) : turn);
    return static_cast<int>(__dmul_rn(float_to_double(fraction), 255.0));
}

__device__ inline void shift_hue(Pixel<1>&, int) {}

__device__ inline void shift_hue(Pixel<3>& pixel, int shift) {
    const int one = pixel.at[0], two = pixel.at[1], three = pixel.at[2];
    const int most = one > two ? (one > three ? one : three) : (two > three ? two : three);
    const int least = one < two ? (one < three ? one : three) : (two < three ? two : three);
    const int range = most - least;
    if (range == 0) {
        return;
    }
    const int saturation = 255 * range / most, turned = ((find_hue(pixel, most, range) + shift) & 255) * 6;
    const int sector = turned / 255, rest = turned - sector * 255;
    constexpr int whole = 255 * 255;
    const int low = (2 * most * (255 - saturation) + 255) / (2 * 255);
    const int falling = (2 * most * (whole - saturation * rest) + whole) / (2 * whole);
    const int rising = (2 * most * (whole - saturation * (255 - rest)) + whole) / (2 * whole);
    // Each channel is at its most for two sectors, falls or rises for one, and is low for two.
    switch (sector % 6) {
        case 0:
            pixel = {most, rising, low};
            break;
        case 1:
            pixel = {falling, most, low};
            break;
        case 2:
            pixel = {low, most, rising};
            break;
        case 3:
            pixel = {low, falling, most};
            break;
        case 4:
            pixel = {rising, low, most};
            break;
        default:
            pixel = {most, low, falling};
    }
}

template <int channels>
__device__ inline Pixel<channels> read_pixel(const unsigned char* from) {
    Pixel<channels> pixel;
    for (int channel = 0; channel < channels; ++channel) {
        pixel.at[channel] = from[channel];
    }
    return pixel;
}

// Changes a pixel; stops before the first change of contrast whose mean is not known, and returns whether there is
// one.
template <int channels>
__device__ inline bool change(Pixel<channels>& pixel, const Changes& changes) {
    unsigned contrasts = 0;
    for (unsigned number = 0; number < changes.count; ++number) {
        const float kind = changes.pairs[2 * number], amount = changes.pairs[2 * number + 1];
        if (kind == CONTRAST) {
            if (contrasts == changes.contrasts) {
                return true;
            }
            blend_all(pixel, changes.means[contrasts++], amount);
        } else if (kind == BRIGHTNESS) {
            blend_all(pixel, 0, amount);
        } else if (kind == SATURATION) {
            blend_all(pixel, find_gray(pixel), amount);
        } else if (kind == HUE) {
            shift_hue(pixel, static_cast<int>(amount));
        }
    }
    return false;
}

// Finds the means before the first `count` changes of contrast, of a picture's sums.
__device__ inline void find_means(int* means, const unsigned long long* sums, const Pictures& pictures,
                                  unsigned sample, unsigned count) {
    __syncthreads();  // those of the sample before are read
    for (unsigned number = threadIdx.x; number < count; number += blockDim.x) {
        const unsigned long long* const parts =
            sums + (static_cast<unsigned long long>(sample) * pictures.contrasts + number) * PARTS;
        unsigned long long sum = 0;
        for (int part = 0; part < PARTS; ++part) {
            sum += parts[part];
        }
        means[number] = static_cast<int>((2 * sum + pictures.pixels) / (2ull * pictures.pixels));
    }
    __syncthreads();
}

__device__ inline Changes find_changes(const float* numbers, const Pictures& pictures, unsigned sample,
                                       const int* means, unsigned contrasts) {
    const float* const row = numbers + static_cast<unsigned long long>(sample) * pictures.row;
    return {row + pictures.first, (pictures.row - pictures.first) / 2, means, contrasts};
}

// Adds up one number of each thread; only the first thread gets the sum.
__device__ inline unsigned long long add_up(unsigned long long* totals, unsigned long long sum) {
    totals[threadIdx.x] = sum;
    for (unsigned count = blockDim.x; count > 1;) {
        const unsigned half = (count + 1) / 2;
        __syncthreads();
        if (threadIdx.x + half < count) {
            totals[threadIdx.x] += totals[threadIdx.x + half];
        }
        count = half;
    }
    return totals[0];
}

template <int channels>
__global__ void measure(const unsigned char* __restrict__ values, const float* __restrict__ numbers,
                        unsigned long long* __restrict__ sums, const __grid_constant__ Pictures pictures,
                        unsigned contrast) {
    __shared__ int means[MOST];
    __shared__ unsigned long long totals[1024];
    for (unsigned sample = blockIdx.y; sample < pictures.samples; sample += gridDim.y) {
        find_means(means, sums, pictures, sample, contrast);
        const Changes changes = find_changes(numbers, pictures, sample, means, contrast);
        const unsigned long long pixels = pictures.pixels;
        const unsigned char* const picture = values + sample * pixels * channels;
        for (unsigned part = blockIdx.x; part < PARTS; part += gridDim.x) {
            const unsigned begin = static_cast<unsigned>(pixels * part / PARTS);
            const unsigned end = static_cast<unsigned>(pixels * (part + 1) / PARTS);
            unsigned long long sum = 0;
            for (unsigned number = begin + threadIdx.x; number < end; number += blockDim.x) {
                Pixel<channels> pixel = read_pixel<channels>(picture + number * static_cast<unsigned long long>(channels));
                if (!change(pixel, changes)) {
                    break;  // this picture's contrast changes less often
                }
                sum += static_cast<unsigned>(find_gray(pixel));
            }
            sum = add_up(totals, sum);
            if (threadIdx.x == 0) {
                sums[(static_cast<unsigned long long>(sample) * pictures.contrasts + contrast) * PARTS + part] = sum;
            }
            __syncthreads();  // the sum is read
        }
    }
}

template <int channels, typename Target>
__global__ void recolor(const unsigned char* __restrict__ values, const float* __restrict__ numbers,
                        const unsigned long long* __restrict__ sums, Target* __restrict__ out,
                        const __grid_constant__ Pictures pictures, const __grid_constant__ Channels constants) {
    __shared__ int means[MOST];
    for (unsigned sample = blockIdx.y; sample < pictures.samples; sample += gridDim.y) {
        find_means(means, sums, pictures, sample, pictures.contrasts);
        const Changes changes = find_changes(numbers, pictures, sample, means, pictures.contrasts);
        const unsigned long long pixels = pictures.pixels, start = sample * pixels * channels;
        for (unsigned number = blockIdx.x * blockDim.x + threadIdx.x; number < pixels;
             number += gridDim.x * blockDim.x) {
            const unsigned long long place = number;
            Pixel<channels> pixel = read_pixel<channels>(values + start + place * channels);
            change(pixel, changes);
            Target* to = out + start + (pictures.planar ? place : place * channels);
            for (int channel = 0; channel < channels; ++channel) {
                finish(pixel.at[channel], constants.factor[channel], constants.offset[channel], *to);
                to += pictures.planar ? pixels : 1;
            }
        }
    }
}
