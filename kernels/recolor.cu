// recolor: changes brightness, contrast, saturation and hue of images as Pillow does, bit for bit, in any order;
// then normalizes and changes the layout, in the same pass.
//
// Contrast needs the mean of the whole gray image, so this is a separate kernel after `resample`: all pixels must be
// there, so they lie in memory as bytes, a quarter of what is finally written. A chain without colors does not pay for
// that.
//
// The definition is that of Pillow's ImageEnhance: an image is blended in float with a black one, with one of the
// mean of its gray, or with its gray; and that of torchvision's adjust_hue, which adds to the hue of Pillow's HSV.
// Over all 2^24 colors, what is computed here in float gives the same.
//
// A thread changes four neighboring pixels at once, so that it loads and stores words, reads a change once, and
// has independent instructions to issue. Bytes stay floats from change to change: their sums and products
// are exact, conversions are slow, and doubles are slower still.
//
// `measure` adds up the gray of a part of an image, as it is before the change of contrast of a given number. So
// it runs once for each, and its sums are integers, whose order does not matter. Every block of `recolor`, and of a
// later `measure`, adds up the parts' sums.
//
// An image's changes are pairs of floats: what to change (1 brightness, 2 contrast, 3 saturation, 4 hue; anything
// else changes nothing), and by how much. For a hue, that is an integer from 0 to 255.
//
// Launch: any grid, one-dimensional blocks. Declaration and twin: recolor.py.

#include "numbers.cuh"
#include "wide.cuh"
#include "channels.cuh"

constexpr int PARTS = 32;  // of an image, each added up by one block
constexpr int MOST = 8;    // changes of contrast
constexpr float BRIGHTNESS = 1.0f, CONTRAST = 2.0f, SATURATION = 3.0f, HUE = 4.0f;

struct Images {
    unsigned samples;
    unsigned pixels;  // of each image
    unsigned planar;  // of the result; 1: CHW, 0: HWC
    unsigned row;     // numbers of an image, which end with its changes
    unsigned first;   // the first one of the changes
    unsigned contrasts;
};

// Four neighboring pixels; bytes as floats.
template <int channels>
struct Pixels {
    float at[4][channels];
};

// The changes of one image, and its means before each change of contrast.
struct Changes {
    const float* pairs;
    unsigned count;
    const float* means;
    unsigned contrasts;  // whose means are known; no later change is made
};

__device__ inline float find_gray(const float (&pixel)[1]) {
    return pixel[0];
}

// Pillow's weights, in 65536ths; the sums are below 2**24, so they are exact.
__device__ inline float find_gray(const float (&pixel)[3]) {
    const float sum = __fmaf_rn(pixel[0], 19595.0f, __fmaf_rn(pixel[1], 38470.0f, __fmaf_rn(pixel[2], 7471.0f, 32768.0f)));
    return truncate_product(sum, 1.0f / 65536.0f);
}

// The greater one of a NaN and 0 is 0. Subnormals, which may be flushed, change no byte.
__device__ inline float blend(float from, float byte, float amount) {
    const float blended = __fadd_rn(from, __fmul_rn(amount, __fadd_rn(byte, -from)));
    return truncate(fminf(fmaxf(blended, 0.0f), 255.0f));
}

__device__ inline void shift_hue(float (&)[1], float) {}

// Quotients of small integers and a sixth are corrected by their remainders, so they are rounded as Pillow rounds
// them to float; its sums in double have no more bits than these have.
__device__ inline void shift_hue(float (&pixel)[3], float shift) {
    const float red = pixel[0], green = pixel[1], blue = pixel[2];
    const float most = fmaxf(fmaxf(red, green), blue), least = fminf(fminf(red, green), blue);
    const float range = most - least, width = fmaxf(range, 1.0f);  // a gray stays what it is, with any hue
    // How far the middle channel is from the greatest; the least one is at 1.
    const float part = most - (((red + green) + blue) - (most + least));
    const float inverse = invert(width), guess = __fmul_rn(part, inverse);
    const float quotient = __fmaf_rn(__fmaf_rn(-width, guess, part), inverse, guess);
    const bool is_red = red == most, is_green = green == most;
    const bool is_rising = is_red ? green < blue : is_green ? blue < red : red <= green;
    const float start = is_red ? (is_rising ? -1.0f : 1.0f)
                        : is_green ? (is_rising ? 1.0f : 3.0f)
                                   : (is_rising ? 3.0f : 5.0f);
    const float sector = __fadd_rn(start, is_rising ? quotient : -quotient);
    constexpr float sixth = 1.0f / 6.0f;
    const float about = __fmul_rn(sector, sixth);
    const float turn = __fmaf_rn(__fmaf_rn(-6.0f, about, sector), sixth, about);
    const float hue = truncate_product(turn < 0.0f ? __fadd_rn(turn, 1.0f) : turn, 255.0f) + shift;
    const float turned = 6.0f * (hue >= 256.0f ? hue - 256.0f : hue);  // 255 for each sector of the color wheel
    const float saturation = truncate_product(__fmaf_rn(255.0f, range, 0.5f), invert(fmaxf(most, 1.0f)));
    // Each channel is at its most for two sectors, falls or rises for one, and is least for two.
    const float fallen[3] = {510.0f - fabsf(turned - 765.0f), fabsf(turned - 510.0f) - 255.0f,
                             fabsf(turned - 1020.0f) - 255.0f};
    for (int channel = 0; channel < 3; ++channel) {
        const float rest = fminf(fmaxf(fallen[channel], 0.0f), 255.0f);
        pixel[channel] = round_product(most * __fmaf_rn(-saturation, rest, 65025.0f), 1.0f / 65025.0f);
    }
}

template <int channels>
__device__ inline Pixels<channels> read_pixels(const unsigned char* from, unsigned long long left, const Extent& array) {
    const Parts<channels> parts =
        left < 4 ? load_bytes<Parts<channels>, channels>(from, array) : load_parts<channels>(from, array);
    Pixels<channels> pixels;
    for (int byte = 0; byte < 4 * channels; ++byte) {
        pixels.at[byte / channels][byte % channels] = byte_to_float(parts.at[byte / 4], byte % 4);
    }
    return pixels;
}

// Changes pixels; stops before the first change of contrast whose mean is not known, and returns whether there is
// one.
template <int channels>
__device__ inline bool change(Pixels<channels>& pixels, const Changes& changes) {
    unsigned contrasts = 0;
    for (unsigned number = 0; number < changes.count; ++number) {
        const float kind = changes.pairs[2 * number], amount = changes.pairs[2 * number + 1];
        if (kind == HUE) {
            const float shift = static_cast<float>(static_cast<int>(amount) & 255);
            for (int pixel = 0; pixel < 4; ++pixel) {
                shift_hue(pixels.at[pixel], shift);
            }
            continue;
        }
        float from[4] = {};
        if (kind == CONTRAST) {
            if (contrasts == changes.contrasts) {
                return true;
            }
            const float mean = changes.means[contrasts++];
            for (int pixel = 0; pixel < 4; ++pixel) {
                from[pixel] = mean;
            }
        } else if (kind == SATURATION) {
            for (int pixel = 0; pixel < 4; ++pixel) {
                from[pixel] = find_gray(pixels.at[pixel]);
            }
        } else if (kind != BRIGHTNESS) {
            continue;
        }
        for (int pixel = 0; pixel < 4; ++pixel) {
            for (int channel = 0; channel < channels; ++channel) {
                pixels.at[pixel][channel] = blend(from[pixel], pixels.at[pixel][channel], amount);
            }
        }
    }
    return false;
}

// Finds the means before the first `count` changes of contrast, of an image's sums.
__device__ inline void find_means(float* means, const unsigned long long* sums, const Images& images,
                                  unsigned sample, unsigned count) {
    __syncthreads();  // those of the sample before are read
    for (unsigned number = threadIdx.x; number < count; number += blockDim.x) {
        const unsigned long long* const parts =
            sums + (static_cast<unsigned long long>(sample) * images.contrasts + number) * PARTS;
        unsigned long long sum = 0;
        for (int part = 0; part < PARTS; ++part) {
            sum += parts[part];
        }
        means[number] = static_cast<float>((2 * sum + images.pixels) / (2ull * images.pixels));
    }
    __syncthreads();
}

__device__ inline Changes find_changes(const float* numbers, const Images& images, unsigned sample,
                                       const float* means, unsigned contrasts) {
    const float* const row = numbers + static_cast<unsigned long long>(sample) * images.row;
    return {row + images.first, (images.row - images.first) / 2, means, contrasts};
}

// Adds up one number of each thread, in two steps; only the first thread gets the sum.
__device__ inline unsigned long long add_up(unsigned long long* totals, unsigned long long sum) {
    totals[threadIdx.x] = sum;
    __syncthreads();
    const unsigned count = blockDim.x < 16 ? blockDim.x : 16;
    if (threadIdx.x < count) {
        for (unsigned thread = threadIdx.x + 16; thread < blockDim.x; thread += 16) {
            sum += totals[thread];
        }
        totals[threadIdx.x] = sum;
    }
    __syncthreads();
    for (unsigned thread = 1; threadIdx.x == 0 && thread < count; ++thread) {
        sum += totals[thread];
    }
    return sum;
}

template <int channels>
__global__ void measure(const unsigned char* __restrict__ values, const float* __restrict__ numbers,
                        unsigned long long* __restrict__ sums, const __grid_constant__ Images images,
                        unsigned contrast) {
    __shared__ float means[MOST];
    __shared__ unsigned long long totals[1024];
    const unsigned long long pixels = images.pixels, fours = (pixels + 3) / 4;
    const Extent array{address_of(values), address_of(values + images.samples * pixels * channels)};
    for (unsigned sample = blockIdx.y; sample < images.samples; sample += gridDim.y) {
        find_means(means, sums, images, sample, contrast);
        const Changes changes = find_changes(numbers, images, sample, means, contrast);
        const unsigned char* const image = values + sample * pixels * channels;
        for (unsigned part = blockIdx.x; part < PARTS; part += gridDim.x) {
            const unsigned begin = static_cast<unsigned>(fours * part / PARTS);
            const unsigned end = static_cast<unsigned>(fours * (part + 1) / PARTS);
            unsigned long long sum = 0;
            for (unsigned four = begin + threadIdx.x; four < end; four += blockDim.x) {
                const unsigned count = images.pixels - four * 4;
                Pixels<channels> read = read_pixels<channels>(image + four * 4ull * channels, count, array);
                if (!change(read, changes)) {
                    break;  // this image's contrast changes less often
                }
                unsigned grays = 0;
                for (unsigned pixel = 0; pixel < 4; ++pixel) {
                    grays += pixel < count ? float_to_integer(find_gray(read.at[pixel])) : 0;
                }
                sum += grays;
            }
            sum = add_up(totals, sum);
            if (threadIdx.x == 0) {
                sums[(static_cast<unsigned long long>(sample) * images.contrasts + contrast) * PARTS + part] = sum;
            }
            __syncthreads();  // the sum is read
        }
    }
}

// Finishes and stores four pixels, of which `count` are the image's.
template <bool is_planar, bool is_wide, int channels, typename Target>
__device__ inline void store(const Pixels<channels>& pixels, Target* to, unsigned long long plane, int count,
                             const Channels& constants) {
    for (int part = 0; part < channels; ++part) {
        Four<Target> four;
        for (int i = 0; i < 4; ++i) {
            // Of planes, a part is a channel; else it is four values of the row of pixels.
            const int pixel = is_planar ? i : (part * 4 + i) / channels;
            const int channel = is_planar ? part : (part * 4 + i) % channels;
            finish(pixels.at[pixel][channel], constants.factor[channel], constants.offset[channel], four.at[i]);
            if (!is_wide && pixel < count) {
                to[i] = four.at[i];
            }
        }
        if (is_wide) {
            *reinterpret_cast<Four<Target>*>(to) = four;
        }
        to += plane;
    }
}

template <int channels, typename Target>
__global__ void recolor(const unsigned char* __restrict__ values, const float* __restrict__ numbers,
                        const unsigned long long* __restrict__ sums, Target* __restrict__ out,
                        const __grid_constant__ Images images, const __grid_constant__ Channels constants) {
    __shared__ float means[MOST];
    const unsigned long long pixels = images.pixels;
    const Extent array{address_of(values), address_of(values + images.samples * pixels * channels)};
    for (unsigned sample = blockIdx.y; sample < images.samples; sample += gridDim.y) {
        find_means(means, sums, images, sample, images.contrasts);
        const Changes changes = find_changes(numbers, images, sample, means, images.contrasts);
        const unsigned long long start = sample * pixels * channels;
        for (unsigned long long first = (blockIdx.x * blockDim.x + threadIdx.x) * 4ull; first < pixels;
             first += gridDim.x * blockDim.x * 4ull) {
            Pixels<channels> four = read_pixels<channels>(values + start + first * channels, pixels - first, array);
            change(four, changes);
            Target* const to = out + start + (images.planar ? first : first * channels);
            const int count = pixels - first < 4 ? static_cast<int>(pixels - first) : 4;
            const bool is_wide = count == 4 && is_aligned(to);
            if (images.planar) {
                if (is_wide && pixels % 4 == 0) {
                    store<true, true>(four, to, pixels, count, constants);
                } else {
                    store<true, false>(four, to, pixels, count, constants);
                }
            } else if (is_wide) {
                store<false, true>(four, to, 4, count, constants);
            } else {
                store<false, false>(four, to, 4, count, constants);
            }
        }
    }
}
