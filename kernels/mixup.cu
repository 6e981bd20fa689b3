// mixup: mixes each sample of a batch with the previous one, the first with the last: images (blend, paste) and
// their labels (mix_labels).
//
// A batch has one mix, of five 4-byte numbers: top, left, bottom and right of a window, and the own share of each
// sample, a float. It is drawn on the host and comes with the batch. All that follows from it is computed here, so
// a launch is the same for every batch.
//
// Every product and every sum is rounded separately, to the nearest, as in NumPy: in double for doubles, and in
// float for everything else. Halves are then rounded once more.
//
// Memory-bound. A thread makes 4 neighbors at a time, with one load of each sample and one store, if they are
// aligned.
//
// Launch: any grid, one-dimensional blocks. Declarations and twins: mixup.py.

#include "numbers.cuh"

constexpr int OWN = 4;  // the number of a mix that is the own share

struct Images {
    unsigned samples, values;  // of each sample
    unsigned line, lines;      // values in a row of pixels, or of a plane's; and rows of a plane
    unsigned pixel;            // values of a pixel that lie side by side
};

struct Labels {
    unsigned long long samples, classes;
};

// The shares of the previous sample, and of a sample itself.
template <typename Real>
struct Shares {
    Real before, own;
};

__device__ inline double multiply(double value, double factor) {
    return __dmul_rn(value, factor);
}

__device__ inline double add(double one, double other) {
    return __dadd_rn(one, other);
}

__device__ inline void read_shares(const int* mix, Shares<float>& shares) {
    shares.own = float_of_bits(mix[OWN]);
    shares.before = add(1.0f, -shares.own);
}

__device__ inline void read_shares(const int* mix, Shares<double>& shares) {
    Shares<float> floats;
    read_shares(mix, floats);
    shares = {float_to_double(floats.before), float_to_double(floats.own)};
}

template <typename Real>
__device__ inline Real mix_two(Real before, Real own, const Shares<Real>& shares) {
    return add(multiply(before, shares.before), multiply(own, shares.own));
}

// A thread's four neighbors of a sample.
struct Quarter {
    unsigned first, count;  // values
};

__device__ inline Quarter find_quarter(const Images& images, unsigned item) {
    const unsigned left = images.values - item * 4;
    return {item * 4, left < 4 ? left : 4};
}

template <typename Value>
__device__ inline Four<Value> load(const Value* from, unsigned count) {
    if (count == 4 && is_aligned(from)) {
        return *reinterpret_cast<const Four<Value>*>(from);
    }
    Four<Value> four = {};
    for (unsigned i = 0; i < count; ++i) {
        four.at[i] = from[i];
    }
    return four;
}

template <typename Value>
__device__ inline void store(const Four<Value>& four, Value* to, unsigned count) {
    if (count == 4 && is_aligned(to)) {
        *reinterpret_cast<Four<Value>*>(to) = four;
        return;
    }
    for (unsigned i = 0; i < count; ++i) {
        to[i] = four.at[i];
    }
}

__device__ inline unsigned long long before(unsigned long long sample, unsigned long long samples) {
    return sample == 0 ? samples - 1 : sample - 1;
}

template <typename Value>
__global__ void blend(const Value* __restrict__ values, const int* __restrict__ mix, Value* __restrict__ out,
                      const __grid_constant__ Images images) {
    Shares<decltype(opened(Value()))> shares;
    read_shares(mix, shares);
    for (unsigned long long sample = blockIdx.y; sample < images.samples; sample += gridDim.y) {
        const Value* const own = values + sample * images.values;
        const Value* const other = values + before(sample, images.samples) * images.values;
        for (unsigned item = blockIdx.x * blockDim.x + threadIdx.x; item < (images.values + 3) / 4;
             item += gridDim.x * blockDim.x) {
            const Quarter part = find_quarter(images, item);
            const Four<Value> one = load(other + part.first, part.count), two = load(own + part.first, part.count);
            Four<Value> made = {};
            for (int i = 0; i < 4; ++i) {
                encode(mix_two(opened(one.at[i]), opened(two.at[i]), shares), made.at[i]);
            }
            store(made, out + sample * images.values + part.first, part.count);
        }
    }
}

// A window in rows, and in values of a row. Parts beyond the edge do not matter: nothing is there.
struct Window {
    long long top, left, bottom, right;
};

// The values are moved as bits, so that dtypes of one size share a kernel.
template <typename Word>
__global__ void paste(const void* __restrict__ values, const int* __restrict__ mix, void* __restrict__ out,
                      const __grid_constant__ Images images) {
    const long long pixel = images.pixel;
    const Window window = {mix[0], mix[1] * pixel, mix[2], mix[3] * pixel};
    for (unsigned long long sample = blockIdx.y; sample < images.samples; sample += gridDim.y) {
        const Word* const own = static_cast<const Word*>(values) + sample * images.values;
        const Word* const other =
            static_cast<const Word*>(values) + before(sample, images.samples) * images.values;
        for (unsigned item = blockIdx.x * blockDim.x + threadIdx.x; item < (images.values + 3) / 4;
             item += gridDim.x * blockDim.x) {
            const Quarter part = find_quarter(images, item);
            unsigned line = part.first / images.line, x = part.first - line * images.line;
            Four<Word> made = {};
            for (unsigned i = 0; i < part.count; ++i) {
                const unsigned y = line % images.lines;
                const bool is_inside = y >= window.top && y < window.bottom && x >= window.left && x < window.right;
                made.at[i] = (is_inside ? other : own)[part.first + i];
                if (++x == images.line) {
                    x = 0;
                    ++line;
                }
            }
            store(made, static_cast<Word*>(out) + sample * images.values + part.first, part.count);
        }
    }
}

// How far a sample belongs to a class: a label is one class, unless it is a row of shares.
template <typename Label>
__device__ inline float find_share(const Label* labels, unsigned long long sample, unsigned long long number,
                                   const Labels&) {
    return static_cast<unsigned long long>(labels[sample]) == number ? 1.0f : 0.0f;
}

template <typename Share>
__device__ inline auto read_share(const Share* rows, unsigned long long sample, unsigned long long number,
                                  const Labels& labels) {
    return opened(rows[sample * labels.classes + number]);
}

__device__ inline float find_share(const Half* rows, unsigned long long sample, unsigned long long number,
                                   const Labels& labels) {
    return read_share(rows, sample, number, labels);
}

__device__ inline float find_share(const float* rows, unsigned long long sample, unsigned long long number,
                                   const Labels& labels) {
    return read_share(rows, sample, number, labels);
}

__device__ inline double find_share(const double* rows, unsigned long long sample, unsigned long long number,
                                    const Labels& labels) {
    return read_share(rows, sample, number, labels);
}

__device__ inline float as_float(float value) {
    return value;
}

__device__ inline float as_float(double value) {
    return round_to_float(value);
}

template <typename Label>
__global__ void mix_labels(const Label* __restrict__ given, const int* __restrict__ mix, float* __restrict__ out,
                           const __grid_constant__ Labels labels) {
    Shares<decltype(find_share(given, 0, 0, labels))> shares;
    read_shares(mix, shares);
    const unsigned long long count = labels.samples * labels.classes;
    for (unsigned long long item = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
         item < count; item += static_cast<unsigned long long>(gridDim.x) * blockDim.x) {
        const unsigned long long sample = item / labels.classes, number = item - sample * labels.classes;
        const auto other = find_share(given, before(sample, labels.samples), number, labels);
        out[item] = as_float(mix_two(other, find_share(given, sample, number, labels), shares));
    }
}
