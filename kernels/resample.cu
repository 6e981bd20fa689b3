// resample: crops a box out of each image and resizes it as Pillow does, bit for bit; then mirrors,
// normalizes and changes the layout, in the same pass. Images of any sizes lie one after another.
//
// The definition is Pillow's for bytes, as two one-dimensional resizes, horizontal first. An output's taps are
// the input pixels around its center, within the filter's support. The support grows with the scale, against
// aliasing, and reaches beyond the box into the image. The weights are computed in double, normalized, and
// rounded to 22 bits. Each pass rounds its sums to bytes. Doubles are computed by instructions that round
// every operation, because a product and a sum that the compiler contracts differ in the last bit.
//
// Doubles are slow, above all on GPUs that have few units for them. So `tabulate` runs first and computes the weights
// of every column and row of every result once; from then on, resizing is all integers.
//
// A GPU multiplies four bytes by four others and adds the products up in one instruction, and two bytes by two numbers
// of 16 bits. So taps come in fours. A weight's lower 16 bits and its upper 8 bits are multiplied apart, and a four of
// taps is three instructions for each channel. The fours of the y axis are the same for all outputs: four rows from the
// region's first on, and so forth. An output has as many as its taps touch, and weights of 0 for the others.
//
// A block makes tiles of the result, one below the other. It resizes the input rows that a tile needs along x into
// shared memory, and from there along y into the result, so the bytes in between never leave the chip. A lane makes a
// column: neighboring lanes load neighboring pixels, which the rows and taps of a warp find in L1, and store to
// neighboring addresses. It loads the pixels of eight taps at once, as words, whatever their address; see wide.cuh.
// Memory takes longer to answer than two rows to resize, so a lane has its next two rows loaded meanwhile, and those
// after them brought into L2. Tiles overlap in the input by the filter's support.
//
// Shared memory is bounded, and scales are not. A tile has only as many columns and rows as their weights fit, or one.
// If its input rows do not fit, fewer rows are made at once. If not even one output's rows fit, its sums continue from
// one portion of rows to the next. Where an output has more taps than a table holds, the blocks compute the weights
// themselves, again for each tile. If not even one output's weights fit, each is computed when it is used; that is
// slow, but needs a scale above 500, bicubic 250.
//
// Only the region of an image that the result depends on may be present. An image's geometry is 13 floats:
// height and width of the region, its top and left in the image; left, top, right and bottom of the box in
// the image; height and width to resize the box to; top and left of the result in there; and a turn, whose
// bit 0 mirrors the result left to right and bit 1 top to bottom. Pixels outside the resized box are black.
//
// An image whose geometry is impossible is black: nothing outside its values may be read, and the host
// cannot check sizes on the device without waiting for it.
//
// Launch: `tabulate`, then `resample`; any grid, one-dimensional blocks of up to 256 threads. Declaration and twin:
// resample.py.

#include "numbers.cuh"
#include "wide.cuh"
#include "channels.cuh"

constexpr int COLUMNS = 32, ROWS = 112;  // of a tile, at most
constexpr int HELD = 50;                 // fours of input rows, resized along x: 112 rows of scale 1.7 need 49
constexpr int KEPT = 256;                // fours of weights kept for a tile's columns, and for its rows
constexpr int TABLED = 8;                // fours of an output in a table: of scales up to 14, bicubic 7
constexpr int TABLE_LINES = TABLED + 1;  // of four numbers for each output; the first line begins with the plan
constexpr int BITS = 22;                 // of a weight's fraction
constexpr double LIMIT = 1 << 23;        // of weights, which have 24 bits with the sign
constexpr int GREATEST = 1 << 24;        // height or width: exact as a float, like the edges of a box

struct Images {
    unsigned long long samples;
    long long pixels;  // of all images
    int out_height, out_width;
    int out_planar;  // 1: CHW, 0: HWC
    int cubic;       // 1: bicubic, 0: bilinear
    int numbers;     // in a row of geometry, which begins with the 13
};

// One axis of an image: its box, and the filter at the box's scale.
struct Axis {
    double start, scale, support, shrink;
    int begin, end;  // of the region
    int out;         // pixels that the box is resized to
    int most;        // fours of an output
    int cubic;
    bool is_y;
};

// The taps of one output: pixels first to first + count - 1.
struct Taps {
    double center, total;
    int first, count;
    __device__ int end() const { return first + count; }
};

// The fours of one output, counted from the region's begin on: of x, the first pixel and how many fours begin there; of
// y, the first of the fours that the region's rows are divided into.
struct Fours {
    int first, count;
    __device__ int end() const { return first + count; }
};

// The weights of a four: the lower 16 bits of taps 0 and 1 and of taps 2 and 3, without a sign, and the upper 8 bits of
// all four, with the signs. An output's `Fours` are kept in here too: `first` in its first weights, and `count` in its
// second. Every output has two or more.
struct alignas(16) Weights {
    unsigned low_01, low_23, high;
    int first_or_count;
};

// Sums of products with the lower and the upper bits of weights, apart. All are modulo 2^32, as the total is, which has
// 31 bits: so nothing is lost.
template <int channels>
struct Sums {
    unsigned low[channels], high[channels];

    __device__ void add(int channel, unsigned pixels, const Weights& weights) {
        low[channel] = __dp2a_lo(weights.low_01, pixels, low[channel]);
        low[channel] = __dp2a_hi(weights.low_23, pixels, low[channel]);
        high[channel] = add_signed_products(pixels, weights.high, high[channel]);
    }
    __device__ int total(int channel) const { return static_cast<int>(low[channel] + (high[channel] << 16)); }
};

// What blocks have to know of an image.
struct Plan {
    int width;  // of the region; 0 of an image that is impossible
    int turn;
    int x_most, y_most;  // fours of an output
    int columns, rows;   // of a tile
};

static_assert(sizeof(Plan) <= 2 * sizeof(Weights), "a result has a column and a row, so a line has two fours");

// The geometry of one image.
struct Geometry {
    int height, width, y_begin, x_begin;
    float left, top, right, bottom;
    int tall, wide, y, x, turn;
};

// What a block keeps of a tile's columns or rows.
template <int outputs>
struct Side {
    Weights weights[KEPT];
    Taps taps[outputs];  // where there is no table
    Axis axis;           // likewise
};

struct alignas(16) Shared {
    Side<COLUMNS> x;
    Side<ROWS> y;
    // A word has the bytes of four rows, of one channel and column. An output loads two, even if it has fewer fours.
    unsigned resized[(HELD + 2) * 3 * COLUMNS];
    int sums[COLUMNS * 3];
    Plan plan;
    Geometry geometry;
};

// An empty image, which is black.
__device__ inline Geometry no_image(int out_height, int out_width) {
    return {0, 0, 0, 0, 0.0f, 0.0f, 1.0f, 1.0f, out_height, out_width, 0, 0, 0};
}

__device__ inline Geometry to_geometry(const float* numbers) {
    int integers[13];
    for (int number = 0; number < 13; ++number) {
        integers[number] = static_cast<int>(numbers[number]);
    }
    return {integers[0], integers[1], integers[2], integers[3], numbers[4],   numbers[5],  numbers[6],
            numbers[7],  integers[8], integers[9], integers[10], integers[11], integers[12]};
}

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
    return is_possible ? to_geometry(numbers) : no_image(out_height, out_width);
}

__device__ inline Axis make_axis(int begin, int size, float low, float high, int out, int cubic, bool is_y) {
    // Pillow subtracts floats. A double holds enough bits for rounding twice to give the same.
    const double exact = __dsub_rn(float_to_double(high), float_to_double(low));
    const double extent = float_to_double(round_to_float(exact));
    const double scale = __ddiv_rn(extent, static_cast<double>(out));
    const double stretch = scale < 1.0 ? 1.0 : scale;
    const double support = cubic ? __dmul_rn(2.0, stretch) : stretch;
    const int reach = static_cast<int>(support);
    const int taps = 2 * (reach + (static_cast<double>(reach) < support)) + 1;
    // On y, up to three rows come before the first tap in its four. On x, two fours are loaded at once. Least are 2.
    const int most = is_y ? (taps + 6) / 4 : (taps + 7) / 8 * 2;
    const double shrink = __ddiv_rn(1.0, stretch);
    return {float_to_double(low), scale, support, shrink, begin, begin + size, out, most, cubic, is_y};
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

// Both ends of the taps rise from output to output, also of those that have none. So the first and the last of a tile's
// rows tell which input rows all of them need.
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

// A tap's weight as an integer, in units of 2 to the -22.
__device__ inline int find_weight(const Axis& axis, const Taps& taps, int tap) {
    double weight = weigh_tap(axis, taps, tap);
    if (taps.total != 0.0) {
        weight = __ddiv_rn(weight, taps.total);
    }
    const double scaled = __dmul_rn(weight, static_cast<double>(1 << BITS));
    const double rounded = weight < 0.0 ? __dadd_rn(-0.5, scaled) : __dadd_rn(0.5, scaled);
    // Within an image, weights are from -0.13 to 1.13. Where its region lacks taps, they have no such bounds.
    return static_cast<int>(rounded < -LIMIT ? -LIMIT : rounded > LIMIT - 1.0 ? LIMIT - 1.0 : rounded);
}

// How many rows come before the first tap in its four.
__device__ inline int find_lead(const Axis& axis, const Taps& taps) {
    return axis.is_y ? (taps.first - axis.begin) % 4 : 0;
}

__device__ inline Fours to_fours(const Axis& axis, const Taps& taps) {
    const int lead = find_lead(axis, taps), first = taps.first - axis.begin - lead;
    return {axis.is_y ? first / 4 : first, (lead + taps.count + 3) / 4};
}

// Not inlined: where weights are read, this is the rare case, and would take the registers of the loop.
__device__ __noinline__ Weights find_weights(const Axis& axis, const Taps& taps, int four) {
    Weights weights = {};
    for (int i = 0; i < 4; ++i) {
        const int tap = 4 * four + i - find_lead(axis, taps);
        const unsigned weight = tap >= 0 && tap < taps.count ? static_cast<unsigned>(find_weight(axis, taps, tap)) : 0;
        (i < 2 ? weights.low_01 : weights.low_23) |= (weight & 0xffffu) << i % 2 * 16;
        weights.high |= (weight >> 16 & 255u) << 8 * i;
    }
    const Fours fours = to_fours(axis, taps);
    weights.first_or_count = four == 0 ? fours.first : fours.count;
    return weights;
}

// Read from the first weights of an output, or from its taps where none are kept.
template <bool is_usual, int outputs>
__device__ inline Fours read_fours(const Side<outputs>& side, int most, int output) {
    if (is_usual || most <= KEPT) {
        const Weights* const weights = side.weights + output * most;
        return {weights[0].first_or_count, weights[1].first_or_count};
    }
    return to_fours(side.axis, side.taps[output]);
}

template <bool is_usual, int outputs>
__device__ inline Weights read_weights(const Side<outputs>& side, int most, int output, int four) {
    return is_usual || most <= KEPT ? side.weights[output * most + four]
                                    : find_weights(side.axis, side.taps[output], four);
}

// The table's memory is one of integers, and may begin anywhere.
__device__ inline Weights read_table(const int* from) {
    if (is_aligned(from)) {
        return *reinterpret_cast<const Weights*>(from);
    }
    return {static_cast<unsigned>(from[0]), static_cast<unsigned>(from[1]), static_cast<unsigned>(from[2]), from[3]};
}

__device__ inline void write_table(const Weights& weights, int* to) {
    if (is_aligned(to)) {
        *reinterpret_cast<Weights*>(to) = weights;
    } else {
        to[0] = static_cast<int>(weights.low_01);
        to[1] = static_cast<int>(weights.low_23);
        to[2] = static_cast<int>(weights.high);
        to[3] = weights.first_or_count;
    }
}

// Keeps the weights of a tile's output `number`, which is output `place` of the result; in the table, its fours lie
// `stride` numbers apart. `begin` is the axis' output that the result begins with, known only where there is no table.
template <int outputs>
__device__ inline void keep_output(Side<outputs>& side, const int* table, int stride, int most, int number,
                                   const int& begin, int place) {
    Weights* const weights = side.weights + number * most;
    if (most <= TABLED) {
        for (int four = 0; four < most; ++four) {
            weights[four] = read_table(table + four * stride);
        }
        return;
    }
    side.taps[number] = find_taps(side.axis, begin + place);
    for (int four = 0; most <= KEPT && four < most; ++four) {
        weights[four] = find_weights(side.axis, side.taps[number], four);
    }
}

// The pixels of eight taps, and how many bits of other bytes come before them.
template <int channels>
struct Pixels {
    unsigned words[2 * channels + 1];
    unsigned skipped;
};

// Loads whole words, if they lie in the array. They may begin in `starts`.
template <bool is_usual, int channels>
__device__ inline Pixels<channels> load_pixels(const unsigned char* from, const Extent& starts, const Extent& array) {
    constexpr int count = 2 * channels + 1;
    const unsigned skipped = static_cast<unsigned>(address_of(from) % 4);
    const unsigned* const aligned = reinterpret_cast<const unsigned*>(from - skipped);
    Pixels<channels> pixels;
    if (is_usual || address_of(from) - starts.begin < starts.end - starts.begin) {
        for (int i = 0; i < count; ++i) {
            pixels.words[i] = aligned[i];
        }
    } else {
        const Parts<count> bytes =
            load_bytes<Parts<count>, count>(reinterpret_cast<const unsigned char*>(aligned), array);
        for (int i = 0; i < count; ++i) {
            pixels.words[i] = bytes.at[i];
        }
    }
    pixels.skipped = 8 * skipped;
    return pixels;
}

// Puts the bytes of one channel of four pixels into a word.
template <int channels>
__device__ inline unsigned pick_channel(const unsigned* words, int channel) {
    if constexpr (channels == 1) {
        return words[0];
    } else {
        unsigned first = 0, last = 0;  // of the first two words; of these and the third
        for (int pixel = 0; pixel < 4; ++pixel) {
            const int byte = 3 * pixel + channel;
            first |= static_cast<unsigned>(byte < 8 ? byte : 0) << 4 * pixel;
            last |= static_cast<unsigned>(byte < 8 ? pixel : byte - 4) << 4 * pixel;
        }
        return __byte_perm(__byte_perm(words[0], words[1], first), words[2], last);
    }
}

template <int channels>
__device__ inline void add_taps(Sums<channels>& sums, const Weights (&weights)[2], const Pixels<channels>& pixels) {
    unsigned words[2 * channels];
    for (int i = 0; i < 2 * channels; ++i) {
        words[i] = cut_out(pixels.words[i], pixels.words[i + 1], pixels.skipped);
    }
    for (int four = 0; four < 2; ++four) {
        for (int channel = 0; channel < channels; ++channel) {
            sums.add(channel, pick_channel<channels>(words + four * channels, channel), weights[four]);
        }
    }
}

// Where a thread begins in a tile, and its steps.
struct Lane {
    int column, row, columns, rows;
};

__device__ inline Lane find_lane() {
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    const int columns = threads < COLUMNS ? threads : COLUMNS, rows = threads / columns;
    const bool is_left_over = thread >= rows * columns;
    return {is_left_over ? COLUMNS : thread % columns, thread / columns, columns, rows};
}

// Resizes pairs of input rows along x into shared memory.
template <bool is_usual, int channels>
__device__ inline void resize_across(Shared& shared, int columns, const Lane& lane, const unsigned char* input,
                                     int pairs, const Extent& starts, const Extent& array) {
    const Address width = static_cast<Address>(shared.plan.width) * channels, stride = 2 * lane.rows * width;
    const int most = shared.plan.x_most;
    constexpr int AHEAD = 3;  // pairs of rows that are on their way into L2
    if (lane.row >= pairs) {
        return;  // it would load rows that nobody has looked for in the array
    }
    for (int column = lane.column; column < columns; column += lane.columns) {
        const Fours fours = read_fours<is_usual>(shared.x, most, column);
        const Weights nearest[2] = {read_weights<is_usual>(shared.x, most, column, 0),
                                    read_weights<is_usual>(shared.x, most, column, 1)};
        const auto resize = [&](const unsigned char* from, const Pixels<channels>& pixels, int (&values)[channels]) {
            Sums<channels> sums = {};
            for (int channel = 0; channel < channels; ++channel) {
                sums.low[channel] = 1 << (BITS - 1);  // half a unit, so that the shift rounds
            }
            add_taps<channels>(sums, nearest, pixels);
#pragma unroll 1
            for (int four = 2; four < fours.count; four += 2) {
                const Weights more[2] = {read_weights<is_usual>(shared.x, most, column, four),
                                         read_weights<is_usual>(shared.x, most, column, four + 1)};
                const unsigned char* const next = from + 4 * four * channels;
                add_taps<channels>(sums, more, load_pixels<is_usual, channels>(next, starts, array));
            }
            for (int channel = 0; channel < channels; ++channel) {
                values[channel] = sums.total(channel) >> BITS;
            }
        };
        unsigned short* const to = reinterpret_cast<unsigned short*>(shared.resized + column);
        const unsigned char* from = input + 2 * lane.row * width + fours.first * channels;
        for (int ahead = 1; is_usual && ahead < AHEAD && lane.row + ahead * lane.rows < pairs; ++ahead) {
            prefetch(from + ahead * stride);
            prefetch(from + ahead * stride + width);
        }
        Pixels<channels> first = load_pixels<is_usual, channels>(from, starts, array);
        Pixels<channels> second = load_pixels<is_usual, channels>(from + width, starts, array);
        for (unsigned pair = lane.row; pair < static_cast<unsigned>(pairs); pair += lane.rows) {
            const unsigned char* const next = from + stride;
            const bool is_more = pair + lane.rows < static_cast<unsigned>(pairs);
            int upper[channels], lower[channels];
            resize(from, first, upper);
            if (is_usual && pair + AHEAD * lane.rows < static_cast<unsigned>(pairs)) {
                prefetch(from + AHEAD * stride);
                prefetch(from + AHEAD * stride + width);
            }
            if (is_more) {
                first = load_pixels<is_usual, channels>(next, starts, array);
            }
            resize(from + width, second, lower);
            if (is_more) {
                second = load_pixels<is_usual, channels>(next + width, starts, array);
            }
            for (int channel = 0; channel < channels; ++channel) {
                to[((pair / 2 * channels + channel) * COLUMNS) * 2 + pair % 2] =
                    static_cast<unsigned short>(clamp_to_bytes(upper[channel], lower[channel]));
            }
            from = next;
        }
    }
}

// Near the array's end, and where not all fits. Not inlined: it would take the registers of the usual case.
template <int channels>
__device__ __noinline__ void resize_across_anywhere(Shared& shared, int columns, const Lane& lane,
                                                    const unsigned char* input, int pairs, const Extent& starts,
                                                    const Extent& array) {
    resize_across<false, channels>(shared, columns, lane, input, pairs, starts, array);
}

// A part of the result.
struct Tile {
    int left, top, wide, tall;
};

// Where a sample's pixels go.
template <int channels, typename Target>
struct Result {
    Target* out;
    int height, width;
    bool is_planar;
    int turn;

    // The pixel of row 0; others are `step` values apart.
    __device__ Target* find_column(int x) const {
        const long long column = turn & 1 ? width - 1 - x : x, pixel = is_planar ? 1 : channels;
        return out + (column + (turn & 2 ? static_cast<long long>(height - 1) * width : 0)) * pixel;
    }
    __device__ int step() const { return (turn & 2 ? -width : width) * (is_planar ? 1 : channels); }
};

// Resizes fours `from` to `to` of the input rows, which are in shared memory, along y, for `count` of the tile's rows
// from `begin` on. Sums that need further rows are kept.
template <bool is_usual, int channels, typename Target>
__device__ inline void resize_down(Shared& shared, const Tile& tile, int begin, int count, const Lane& lane, int from,
                                   int to, const Result<channels, Target>& result, const Channels& constants) {
    const int most = shared.plan.y_most;
    const bool is_begin = is_usual || from == read_fours<is_usual>(shared.y, most, begin).first;
    const bool is_end = is_usual || to == read_fours<is_usual>(shared.y, most, begin + count - 1).end();
    const long long plane = result.is_planar ? static_cast<long long>(result.height) * result.width : 1;
    const long long below = result.step();
    for (int column = lane.column; column < tile.wide; column += lane.columns) {
        Target* out = result.find_column(tile.left + column) + below * (tile.top + begin + lane.row);
        const unsigned* const words = shared.resized + column;
        for (int row = begin + lane.row; row < begin + count; row += lane.rows, out += below * lane.rows) {
            const Fours fours = read_fours<is_usual>(shared.y, most, row);
            const int end = is_usual || fours.end() < to ? fours.end() : to;
            Sums<channels> sums = {};
            for (int channel = 0; channel < channels; ++channel) {
                sums.low[channel] = is_begin ? 1 << (BITS - 1) : shared.sums[column * channels + channel];
            }
            const auto add = [&](int four) {
                const Weights weights = read_weights<is_usual>(shared.y, most, row, four - fours.first);
                for (int channel = 0; channel < channels; ++channel) {
                    sums.add(channel, words[((four - from) * channels + channel) * COLUMNS], weights);
                }
            };
            int four = fours.first;
            if constexpr (is_usual) {
                add(four++);
                add(four++);
            } else {
                four = four > from ? four : from;
            }
#pragma unroll 1
            for (; four < end; ++four) {
                add(four);
            }
            if (!is_end) {  // portions are of one row only, so a sum has one thread
                for (int channel = 0; channel < channels; ++channel) {
                    shared.sums[column * channels + channel] = sums.total(channel);
                }
                continue;
            }
            Target* pixel = out;
            for (int channel = 0; channel < channels; ++channel) {
                const float byte = clamp_to_float(sums.total(channel) >> BITS);
                finish(byte, constants.factor[channel], constants.offset[channel], *pixel);
                pixel += plane;
            }
        }
    }
}

// Makes a tile, whose outputs are kept.
template <int channels, typename Target>
__device__ inline void make_tile(Shared& shared, const Tile& tile, const Lane& lane, const unsigned char* image,
                                 const Extent& array, const Result<channels, Target>& result,
                                 const Channels& constants) {
    const int x_most = shared.plan.x_most, y_most = shared.plan.y_most;
    const Address width = static_cast<Address>(shared.plan.width) * channels;
    // Words that are loaded whole have to be in the array, also those that have only weights of 0.
    const Address size = 8 * channels + 4;
    const Address start = (array.begin + 3) & ~3ull;
    const Extent starts = {start, array.end < start + size ? start : array.end - size};
    int count;
    for (int begin = 0; begin < tile.tall; begin += count) {
        const int first = read_fours<false>(shared.y, y_most, begin).first;
        count = tile.tall - begin;
        while (count > 1 && read_fours<false>(shared.y, y_most, begin + count - 1).end() - first > HELD) {
            --count;
        }
        const int end = read_fours<false>(shared.y, y_most, begin + count - 1).end();
        int from = first;
        do {
            const int to = end - from < HELD ? end : from + HELD;
            const unsigned char* const input = image + 4 * from * width;
            const Address last = address_of(input) + 4 * (to - from) * width + 4 * x_most * channels;
            if (from > first || begin > 0) {
                __syncthreads();  // what is there has been used
            }
            if (x_most <= KEPT && y_most <= KEPT && to - from == end - first && address_of(input) >= starts.begin &&
                last < starts.end) {
                resize_across<true, channels>(shared, tile.wide, lane, input, 2 * (to - from), starts, array);
                __syncthreads();
                resize_down<true>(shared, tile, begin, count, lane, from, to, result, constants);
            } else {
                resize_across_anywhere<channels>(shared, tile.wide, lane, input, 2 * (to - from), starts, array);
                __syncthreads();
                resize_down<false>(shared, tile, begin, count, lane, from, to, result, constants);
            }
            from = to;
        } while (from < end);
    }
}

// How many outputs a tile has along an axis: as many as can keep their weights, or one.
__device__ inline int fit(const Axis& axis, int limit) {
    const int fitting = KEPT / axis.most;
    return fitting < 1 ? 1 : fitting < limit ? fitting : limit;
}

__device__ inline Axis make_x(const Geometry& geometry, int cubic) {
    return make_axis(geometry.x_begin, geometry.width, geometry.left, geometry.right, geometry.wide, cubic, false);
}

__device__ inline Axis make_y(const Geometry& geometry, int cubic) {
    return make_axis(geometry.y_begin, geometry.height, geometry.top, geometry.bottom, geometry.tall, cubic, true);
}

// Makes the tables of all images: the plan, and from the second line on the fours of columns and rows, so that
// neighboring lanes access neighboring fours.
extern "C" __global__ void __launch_bounds__(256, 4)  // all blocks of 256 images at once on an H100
    tabulate(const long long* __restrict__ splits, const float* __restrict__ geometries, int* __restrict__ tables,
             const __grid_constant__ Images images) {
    __shared__ Geometry geometry;
    __shared__ Axis x_axis, y_axis;
    const int width = images.out_width, outputs = width + images.out_height;
    for (unsigned long long sample = blockIdx.y; sample < images.samples; sample += gridDim.y) {
        int* const table = tables + sample * TABLE_LINES * 4 * outputs;
        __syncthreads();  // the sample before is made
        if (threadIdx.x == 0) {
            const long long begin = splits[sample], end = splits[sample + 1];
            const bool is_inside = begin >= 0 && begin <= end && end <= images.pixels;
            geometry = read_geometry(geometries + sample * images.numbers, is_inside ? end - begin : 0,
                                     images.out_height, width);
            x_axis = make_x(geometry, images.cubic);
            y_axis = make_y(geometry, images.cubic);
            if (blockIdx.x == 0) {
                *reinterpret_cast<Plan*>(table) = {geometry.width, geometry.turn,         x_axis.most,
                                                   y_axis.most,    fit(x_axis, COLUMNS), fit(y_axis, ROWS)};
            }
        }
        __syncthreads();
        const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
        for (long long number = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; number < outputs;
             number += step) {
            const int output = static_cast<int>(number);
            const bool is_row = output >= width;
            const Axis& axis = is_row ? y_axis : x_axis;
            if (axis.most <= TABLED) {
                const Taps taps = find_taps(axis, is_row ? geometry.y + output - width : geometry.x + output);
                for (int four = 0; four < axis.most; ++four) {
                    write_table(find_weights(axis, taps, four), table + 4 * ((1 + four) * outputs + output));
                }
            }
        }
    }
}

// A thread needs 80 registers, so three blocks fit on a multiprocessor. With four, a variant of this took 183 instead of
// 171 µs on an H100 to resize 256 photos of 500 x 375 to 224 x 224, and 189 without AHEAD.
template <int channels, typename Target>
__global__ void __launch_bounds__(256, 3)
    resample(const unsigned char* __restrict__ values, const long long* __restrict__ splits,
             const float* __restrict__ geometries, const int* __restrict__ tables, Target* __restrict__ out,
             const __grid_constant__ Images images, const __grid_constant__ Channels constants) {
    __shared__ Shared shared;
    const int out_height = images.out_height, out_width = images.out_width, outputs = out_width + out_height;
    const Lane lane = find_lane();
    const Extent array{address_of(values), address_of(values + images.pixels * channels)};
    const Plan& plan = shared.plan;
    for (unsigned long long sample = blockIdx.y; sample < images.samples; sample += gridDim.y) {
        const int* const table = tables + sample * TABLE_LINES * 4 * outputs;
        __syncthreads();  // the sample before is made
        if (threadIdx.x == 0) {
            shared.plan = *reinterpret_cast<const Plan*>(table);
            if (plan.x_most > TABLED || plan.y_most > TABLED) {
                shared.geometry = to_geometry(geometries + sample * images.numbers);
                shared.x.axis = make_x(shared.geometry, images.cubic);
                shared.y.axis = make_y(shared.geometry, images.cubic);
            }
        }
        const long long begin = splits[sample];
        const int* const weights = table + 4 * outputs;
        __syncthreads();
        const unsigned char* const image = values + (plan.width > 0 ? begin : 0) * channels;
        const Result<channels, Target> result = {
            out + sample * channels * static_cast<unsigned long long>(out_height) * out_width, out_height,
            out_width, images.out_planar != 0, plan.turn};
        const int columns = plan.columns, rows = plan.rows, below = (out_height + rows - 1) / rows;
        const long long tiles = static_cast<long long>(below) * ((out_width + columns - 1) / columns);
        const long long each = (tiles + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each;
        for (long long number = first; number < first + each && number < tiles; ++number) {
            const int column = static_cast<int>(number / below), row = static_cast<int>(number % below);
            Tile tile = {column * columns, row * rows, columns, rows};
            tile.wide = out_width - tile.left < columns ? out_width - tile.left : columns;
            tile.tall = out_height - tile.top < rows ? out_height - tile.top : rows;
            const bool is_new = number == first || tile.top == 0;
            __syncthreads();  // the tile before is made
            for (int item = threadIdx.x; item < tile.wide + tile.tall; item += blockDim.x) {
                if (item >= tile.wide) {
                    const int place = tile.top + item - tile.wide;
                    keep_output(shared.y, weights + 4 * (out_width + place), 4 * outputs, plan.y_most, item - tile.wide,
                                shared.geometry.y, place);
                } else if (is_new) {
                    const int place = tile.left + item;
                    keep_output(shared.x, weights + 4 * place, 4 * outputs, plan.x_most, item, shared.geometry.x,
                                place);
                }
            }
            __syncthreads();
            make_tile(shared, tile, lane, image, array, result, constants);
        }
    }
}
