// resample: crops a box out of each picture and resizes it as Pillow does, bit for bit; then mirrors,
// normalizes and changes the layout, in the same pass. Pictures of any sizes lie one behind the other.
//
// The definition is Pillow's for bytes, as two one-dimensional resizes, horizontal first. An output's taps are
// the input pixels around its center, within the filter's support. The support grows with the scale, against
// aliasing, and reaches beyond the box into the picture. The weights are computed in double, normalized, and
// rounded to 22 bits. Each pass rounds its sums to bytes. Doubles are computed by instructions that round
// every operation, because a product and a sum that the compiler contracts differ in the last bit.
//
// A block makes a tile of the result. It computes the weights of the tile's columns and rows, resizes the
// input rows that the tile needs along x into shared memory, and from there along y into the result. So the
// bytes in between never leave the chip. Neighboring lanes load neighboring pixels, which the tile's rows and
// taps find in L1, and store to neighboring addresses. Tiles overlap in the input by the filter's support.
//
// Shared memory is bounded, and scales are not. If the weights or the rows of a whole tile do not fit, fewer
// columns are made at once, then fewer rows. If not even one output's rows fit, its sums continue from one
// portion of rows to the next. If not even one output's weights fit, each is computed when it is used; that
// is slow, but needs a scale above 500.
//
// Of a picture, only the region that the result depends on may be there. A picture's geometry is 13 floats:
// height and width of the region, its top and left in the picture; left, top, right and bottom of the box in
// the picture; height and width to resize the box to; top and left of the result in there; and a turn, whose
// bit 0 mirrors the result left to right and bit 1 top to bottom. Pixels outside the resized box are black.
//
// A picture whose geometry is impossible is black: nothing outside its values may be read, and the host
// cannot check sizes on the device without waiting for it.
//
// Launch: any grid, one-dimensional blocks. Declaration and twin: resample.py.

#include "numbers.cuh"
#include "channels.cuh"

constexpr int COLUMNS = 32, ROWS = 16;  // of a tile
constexpr int WEIGHTS = 2048;           // kept per axis
constexpr int BYTES = 8192;             // of input rows, resized along x
constexpr int BITS = 22;                // of a weight's fraction
constexpr int GREATEST = 1 << 24;       // height or width: exact as a float, like the edges of a box

struct Pictures {
    unsigned long long samples;
    long long pixels;  // of all pictures
    int out_height, out_width;
    int out_planar;  // 1: CHW, 0: HWC
    int cubic;       // 1: bicubic, 0: bilinear
    int numbers;     // in a row of geometry, which begins with the 13
};

// One axis of a picture: its box, and the filter at the box's scale.
struct Axis {
    double start, scale, support, shrink;
    int begin, end;  // of the region
    int out;         // pixels that the box is resized to
    int most;        // taps of an output, at most
    int cubic;
};

// The taps of one output: pixels first to first + count - 1.
struct Taps {
    double center, total;
    int first, count;
    __device__ int end() const { return first + count; }
};

// A run of a tile's columns or rows.
struct Span {
    int first, count;
};

struct Shared {
    Taps columns[COLUMNS], rows[ROWS];
    int across[WEIGHTS], down[WEIGHTS];
    int sums[COLUMNS * 4];
    unsigned char lines[BYTES];  // (input rows, columns of the span, channels)
};

// The geometry of one picture.
struct Geometry {
    int height, width, y_begin, x_begin;
    float left, top, right, bottom;
    int tall, wide, y, x, turn;
};

// Comparisons with NaN are false.
__device__ inline bool is_between(float number, double low, double high) {
    const double value = float_to_double(number);
    return value >= low && value <= high;
}

__device__ inline Geometry read_geometry(const float* numbers, long long pixels, int out_height,
                                         int out_width) {
    bool is_possible = is_between(numbers[12], 0.0, 3.0);
    for (int number = 0; number < 12; ++number) {
        const bool is_length = number < 2 || number == 8 || number == 9;
        const bool may_be_negative = number == 10 || number == 11;
        const double least = is_length ? 1.0 : may_be_negative ? -GREATEST : 0.0;
        is_possible = is_possible && is_between(numbers[number], least, GREATEST);
    }
    is_possible = is_possible && float_to_double(numbers[4]) < float_to_double(numbers[6]) &&
                  float_to_double(numbers[5]) < float_to_double(numbers[7]);
    if (is_possible) {
        const long long height = static_cast<long long>(numbers[0]);
        is_possible = height * static_cast<long long>(numbers[1]) <= pixels;
    }
    if (!is_possible) {  // an empty picture
        return {0, 0, 0, 0, 0.0f, 0.0f, 1.0f, 1.0f, out_height, out_width, 0, 0, 0};
    }
    int integers[13];
    for (int number = 0; number < 13; ++number) {
        integers[number] = static_cast<int>(numbers[number]);
    }
    return {integers[0], integers[1], integers[2], integers[3], numbers[4],   numbers[5],  numbers[6],
            numbers[7],  integers[8], integers[9], integers[10], integers[11], integers[12]};
}

__device__ inline Axis make_axis(int begin, int size, float low, float high, int out, int cubic) {
    // Pillow subtracts floats. A double holds enough bits for rounding twice to give the same.
    const double exact = __dsub_rn(float_to_double(high), float_to_double(low));
    const double extent = float_to_double(round_to_float(exact));
    const double scale = __ddiv_rn(extent, static_cast<double>(out));
    const double stretch = scale < 1.0 ? 1.0 : scale;
    const double support = cubic ? __dmul_rn(2.0, stretch) : stretch;
    const int reach = static_cast<int>(support);
    const int most = 2 * (reach + (static_cast<double>(reach) < support)) + 1;
    const double shrink = __ddiv_rn(1.0, stretch);
    return {float_to_double(low), scale, support, shrink, begin, begin + size, out, most, cubic};
}

// The filter's value at a distance from the center, in units of its stretched pixels.
__device__ inline double weigh(double distance, int cubic) {
    const double x = distance < 0.0 ? -distance : distance;
    if (!cubic) {
        return x < 1.0 ? __dsub_rn(1.0, x) : 0.0;
    }
    if (x < 1.0) {
        const double inner = __dsub_rn(__dmul_rn(1.5, x), 2.5);
        return __dadd_rn(__dmul_rn(__dmul_rn(inner, x), x), 1.0);
    }
    if (x < 2.0) {
        const double inner = __dadd_rn(__dmul_rn(__dsub_rn(x, 5.0), x), 8.0);
        return __dmul_rn(__dsub_rn(__dmul_rn(inner, x), 4.0), -0.5);
    }
    return 0.0;
}

__device__ inline double weigh_tap(const Axis& axis, const Taps& taps, int tap) {
    const double place = __dsub_rn(static_cast<double>(tap + taps.first), taps.center);
    return weigh(__dmul_rn(__dadd_rn(place, 0.5), axis.shrink), axis.cubic);
}

__device__ inline int moved_inside(int place, const Axis& axis) {
    return place < axis.begin ? axis.begin : place > axis.end ? axis.end : place;
}

// Both ends of the taps rise from output to output, also of those that have none.
__device__ inline Taps find_taps(const Axis& axis, int output) {
    const int place = output < 0 ? 0 : output < axis.out ? output : axis.out - 1;
    Taps taps;
    taps.center = __dadd_rn(axis.start, __dmul_rn(__dadd_rn(static_cast<double>(place), 0.5), axis.scale));
    const double first = __dadd_rn(__dsub_rn(taps.center, axis.support), 0.5);
    const double end = __dadd_rn(__dadd_rn(taps.center, axis.support), 0.5);
    taps.first = moved_inside(static_cast<int>(first), axis);
    taps.count = moved_inside(static_cast<int>(end), axis) - taps.first;
    if (output != place) {  // outside of the resized box
        taps.first = output > place ? taps.end() : taps.first;
        taps.count = 0;
    }
    taps.total = 0.0;
    for (int tap = 0; tap < taps.count; ++tap) {
        taps.total = __dadd_rn(taps.total, weigh_tap(axis, taps, tap));
    }
    return taps;
}

// A tap's weight as an integer, in units of 2 to the -22. Not inlined: where weights are read, this is the rare
// case, and would take the registers of the loop.
__device__ __noinline__ int find_weight(const Axis& axis, const Taps& taps, int tap) {
    double weight = weigh_tap(axis, taps, tap);
    if (taps.total != 0.0) {
        weight = __ddiv_rn(weight, taps.total);
    }
    const double scaled = __dmul_rn(weight, static_cast<double>(1 << BITS));
    return static_cast<int>(weight < 0.0 ? __dadd_rn(-0.5, scaled) : __dadd_rn(0.5, scaled));
}

__device__ inline int round_to_byte(int sum) {
    const int value = sum >> BITS;
    return value < 0 ? 0 : value > 255 ? 255 : value;
}

// Keeps the weights of a span, `axis.most` for each output, if there is room for them.
__device__ inline void keep_weights(const Axis& axis, const Taps* taps, int count, int* kept) {
    if (axis.most > WEIGHTS) {
        return;
    }
    for (int item = threadIdx.x; item < count * axis.most; item += blockDim.x) {
        const int output = item / axis.most, tap = item - output * axis.most;
        if (tap < taps[output].count) {
            kept[item] = find_weight(axis, taps[output], tap);
        }
    }
}

__device__ inline int read_weight(const Axis& axis, const Taps* taps, const int* kept, int output, int tap) {
    return axis.most > WEIGHTS ? find_weight(axis, taps[output], tap) : kept[output * axis.most + tap];
}

// How many of `whole` outputs have their weights kept at once.
__device__ inline int part_of(int whole, int most) {
    const int part = WEIGHTS / most;
    return part < 1 ? 1 : part < whole ? part : whole;
}

// Resizes `count` input rows along x into the shared lines.
template <int channels>
__device__ inline void resize_across(Shared& shared, const Axis& axis, const Span& columns,
                                     const unsigned char* lines, int count) {
    const Taps* const outputs = shared.columns + columns.first;
    for (int item = threadIdx.x; item < count * columns.count; item += blockDim.x) {
        const int line = item / columns.count, column = item - line * columns.count;
        const Taps& taps = outputs[column];
        const long long width = axis.end - axis.begin;
        const unsigned char* pixel = lines + (line * width + taps.first - axis.begin) * channels;
        int sums[channels];
        for (int channel = 0; channel < channels; ++channel) {
            sums[channel] = 1 << (BITS - 1);
        }
        for (int tap = 0; tap < taps.count; ++tap) {
            const int weight = read_weight(axis, outputs, shared.across, column, tap);
            for (int channel = 0; channel < channels; ++channel) {
                sums[channel] += weight * *pixel++;
            }
        }
        for (int channel = 0; channel < channels; ++channel) {
            const int byte = round_to_byte(sums[channel]);
            shared.lines[item * channels + channel] = static_cast<unsigned char>(byte);
        }
    }
}

// Where a sample's pixels go.
template <int channels, typename Target>
struct Result {
    Target* out;
    int height, width;
    bool is_planar;
    int turn;

    __device__ void store(int y, int x, const int (&sums)[channels], const Channels& constants) const {
        const long long row = turn & 2 ? height - 1 - y : y;
        const long long pixel = row * width + (turn & 1 ? width - 1 - x : x);
        const long long plane = is_planar ? static_cast<long long>(height) * width : 1;
        Target* to = out + (is_planar ? pixel : pixel * channels);
        for (int channel = 0; channel < channels; ++channel) {
            finish(round_to_byte(sums[channel]), constants.factor[channel], constants.offset[channel], *to);
            to += plane;
        }
    }
};

// Resizes the shared lines, which are input rows `from` to `to`, along y. Sums that need further rows are
// kept.
template <int channels, typename Target>
__device__ inline void resize_down(Shared& shared, const Axis& axis, const Span& columns, const Span& rows,
                                   int from, int to, int top, int left,
                                   const Result<channels, Target>& result, const Channels& constants) {
    const Taps* const outputs = shared.rows + rows.first;
    const bool is_begin = from == outputs[0].first, is_end = to == outputs[rows.count - 1].end();
    for (int item = threadIdx.x; item < rows.count * columns.count; item += blockDim.x) {
        const int row = item / columns.count, column = item - row * columns.count;
        const Taps& taps = outputs[row];
        int sums[channels];
        for (int channel = 0; channel < channels; ++channel) {
            sums[channel] = is_begin ? 1 << (BITS - 1) : shared.sums[item * channels + channel];
        }
        const int low = taps.first < from ? from : taps.first, high = taps.end() < to ? taps.end() : to;
        for (int y = low; y < high; ++y) {
            const int weight = read_weight(axis, outputs, shared.down, row, y - taps.first);
            const unsigned char* pixel = shared.lines + ((y - from) * columns.count + column) * channels;
            for (int channel = 0; channel < channels; ++channel) {
                sums[channel] += weight * pixel[channel];
            }
        }
        if (is_end) {
            result.store(top + rows.first + row, left + columns.first + column, sums, constants);
        } else {  // only spans of one row are made in several portions
            for (int channel = 0; channel < channels; ++channel) {
                shared.sums[item * channels + channel] = sums[channel];
            }
        }
    }
}

// Makes the columns and rows of a tile whose upper left corner is at (top, left); their taps are known.
template <int channels, typename Target>
__device__ inline void make_tile(Shared& shared, const Axis& x_axis, const Axis& y_axis, int wide, int tall,
                                 int top, int left, const unsigned char* picture,
                                 const Result<channels, Target>& result, const Channels& constants) {
    const int most_columns = part_of(wide, x_axis.most), most_rows = part_of(tall, y_axis.most);
    Span columns, rows;
    for (columns.first = 0; columns.first < wide; columns.first += columns.count) {
        const int left_over = wide - columns.first;
        columns.count = left_over < most_columns ? left_over : most_columns;
        const int room = BYTES / (columns.count * channels);  // input rows that fit
        __syncthreads();                                      // the taps are known
        keep_weights(x_axis, shared.columns + columns.first, columns.count, shared.across);
        for (rows.first = 0; rows.first < tall; rows.first += rows.count) {
            const Taps* const taps = shared.rows + rows.first;
            const int first = taps[0].first;
            rows.count = tall - rows.first < most_rows ? tall - rows.first : most_rows;
            while (rows.count > 1 && taps[rows.count - 1].end() - first > room) {
                --rows.count;
            }
            const int end = taps[rows.count - 1].end();
            __syncthreads();  // the span before is made
            keep_weights(y_axis, taps, rows.count, shared.down);
            int from = first;
            do {
                const int to = end - from < room ? end : from + room;
                __syncthreads();  // the weights are kept, and the portion before is added
                const long long width = x_axis.end - x_axis.begin;
                const unsigned char* const lines = picture + (from - y_axis.begin) * width * channels;
                resize_across<channels>(shared, x_axis, columns, lines, to - from);
                __syncthreads();
                resize_down(shared, y_axis, columns, rows, from, to, top, left, result, constants);
                from = to;
            } while (from < end);
        }
    }
}

template <int channels, typename Target>
__global__ void resample(const unsigned char* __restrict__ values, const long long* __restrict__ splits,
                         const float* __restrict__ geometries, Target* __restrict__ out,
                         const __grid_constant__ Pictures pictures,
                         const __grid_constant__ Channels constants) {
    __shared__ Shared shared;
    const int out_height = pictures.out_height, out_width = pictures.out_width;
    const int beside = out_width / COLUMNS + (out_width % COLUMNS != 0);
    const int tiles = beside * (out_height / ROWS + (out_height % ROWS != 0));
    for (unsigned long long sample = blockIdx.y; sample < pictures.samples; sample += gridDim.y) {
        const long long begin = splits[sample], end = splits[sample + 1];
        const bool is_inside = begin >= 0 && begin <= end && end <= pictures.pixels;
        const Geometry geometry =
            read_geometry(geometries + sample * pictures.numbers, is_inside ? end - begin : 0, out_height, out_width);
        const unsigned char* picture = values + (is_inside ? begin : 0) * channels;
        const Axis x_axis = make_axis(geometry.x_begin, geometry.width, geometry.left, geometry.right,
                                      geometry.wide, pictures.cubic);
        const Axis y_axis = make_axis(geometry.y_begin, geometry.height, geometry.top, geometry.bottom,
                                      geometry.tall, pictures.cubic);
        const Result<channels, Target> result = {
            out + sample * channels * static_cast<unsigned long long>(out_height) * out_width, out_height,
            out_width, pictures.out_planar != 0, geometry.turn};
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const int top = tile / beside * ROWS, left = tile % beside * COLUMNS;
            const int wide = out_width - left < COLUMNS ? out_width - left : COLUMNS;
            const int tall = out_height - top < ROWS ? out_height - top : ROWS;
            __syncthreads();  // the tile before is made
            for (int item = threadIdx.x; item < wide + tall; item += blockDim.x) {
                if (item < wide) {
                    shared.columns[item] = find_taps(x_axis, geometry.x + left + item);
                } else {
                    shared.rows[item - wide] = find_taps(y_axis, geometry.y + top + item - wide);
                }
            }
            make_tile(shared, x_axis, y_axis, wide, tall, top, left, picture, result, constants);
        }
    }
}
