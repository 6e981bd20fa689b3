// erase: fills a rectangle of each image with a color, in place.
//
// Only the rectangles are written. A block's lanes write neighboring values of a rectangle's row, and then go on
// to the next row. How large the rectangles are is known on the device alone, so blocks are as many as an image
// would keep busy, and those that find nothing to do end at once. Values are written as bits, so that dtypes of
// one size share a kernel.
//
// Nothing outside an image may be written, and the host cannot check rectangles on the device without waiting
// for it. So what reaches over the edge is cut off.
//
// Launch: any grid, one-dimensional blocks. Twin and launcher: erase.py.

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
