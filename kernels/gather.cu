// gather: out[i] = source[indices[i]], rows of any size; with a span, out[i] = source[indices[first + i]].
//
// A plain copy, so three things count: neighboring lanes must access neighboring words, words must be as large
// as the rows and both addresses allow (the launcher picks 16, 8, 4, 2 or 1 bytes), and each lane must have
// several loads in flight. A block is some lanes along a row times some rows: 256 lanes per row if rows are long,
// one lane per row if a row is one word. That keeps all lanes busy and cache lines whole. Long rows are also split
// over the grid's y, so that a few of them fill the device too. A lane loads four words before it stores the
// first: of one row if that is long, otherwise of four rows, whose numbers are also loaded together. There are no
// divisions.
//
// Row numbers are not checked: the caller guarantees that they are in the source.
//
// `indices` may be an epoch's order that is already on the device. `span` is then the first and the last
// position of a batch in it, so only these two numbers have to come from the host. Rows past the last
// position repeat it. Without indices, positions are row numbers.
//
// gather_fields gathers the rows of several arrays by the same indices in one launch. The grid's z counts the
// arrays, and each array divides a block into lanes along its own rows.
//
// Launch: any grid, two-dimensional blocks of any size; gather_fields uses up to 256 threads of a block. Declaration
// and twin: gather.py.

constexpr int AHEAD = 4;  // loads that a lane has in flight

// Which rows to gather.
struct Rows {
    const long long* indices;
    unsigned long long first, last;  // positions
    unsigned long long count;
};

// A thread's first word of a row and its first row, and the steps to the next ones.
struct Share {
    unsigned long long word, words_apart;
    unsigned long long row, rows_apart;
};

__device__ inline Rows read_rows(const long long* indices, const long long* span, unsigned long long count) {
    if (span == nullptr) {
        return {indices, 0, ~0ull, count};
    }
    return {indices, static_cast<unsigned long long>(span[0]), static_cast<unsigned long long>(span[1]), count};
}

__device__ inline unsigned long long find_row(const Rows& rows, unsigned long long row) {
    const unsigned long long ahead = row + rows.first;
    const unsigned long long position = ahead < rows.last ? ahead : rows.last;
    return rows.indices == nullptr ? position : static_cast<unsigned long long>(rows.indices[position]);
}

// Copies one word of each row of the share.
template <typename Word>
__device__ inline void copy_short_rows(const Word* __restrict__ source, const Rows& rows, Word* __restrict__ out,
                                       unsigned long long words, const Share& share) {
    for (unsigned long long row = share.row; row < rows.count; row += AHEAD * share.rows_apart) {
        unsigned long long from[AHEAD] = {};
        Word held[AHEAD] = {};
        for (int i = 0; i < AHEAD; ++i) {
            if (row + i * share.rows_apart < rows.count) {
                from[i] = find_row(rows, row + i * share.rows_apart);
            }
        }
        for (int i = 0; i < AHEAD; ++i) {
            if (row + i * share.rows_apart < rows.count) {
                held[i] = source[from[i] * words + share.word];
            }
        }
        for (int i = 0; i < AHEAD; ++i) {
            if (row + i * share.rows_apart < rows.count) {
                out[(row + i * share.rows_apart) * words + share.word] = held[i];
            }
        }
    }
}

template <typename Word>
__device__ inline void copy_rows(const Word* __restrict__ source, const Rows& rows, Word* __restrict__ out,
                                 unsigned long long words, const Share& share) {
    if (share.word >= words) {
        return;
    }
    if (words <= share.words_apart) {
        copy_short_rows(source, rows, out, words, share);
        return;
    }
    for (unsigned long long row = share.row; row < rows.count; row += share.rows_apart) {
        const Word* from = source + find_row(rows, row) * words;
        Word* to = out + row * words;
        unsigned long long word = share.word;
        for (; word + (AHEAD - 1) * share.words_apart < words; word += AHEAD * share.words_apart) {
            Word held[AHEAD];
            for (int i = 0; i < AHEAD; ++i) {
                held[i] = from[word + i * share.words_apart];
            }
            for (int i = 0; i < AHEAD; ++i) {
                to[word + i * share.words_apart] = held[i];
            }
        }
        for (; word < words; word += share.words_apart) {
            to[word] = from[word];
        }
    }
}

template <typename Word>
__global__ void gather(const void* __restrict__ source, const long long* __restrict__ indices,
                       const long long* __restrict__ span, void* __restrict__ out, unsigned long long rows,
                       unsigned long long words) {
    const Share share{static_cast<unsigned long long>(blockIdx.y) * blockDim.x + threadIdx.x,
                      static_cast<unsigned long long>(gridDim.y) * blockDim.x,
                      static_cast<unsigned long long>(blockIdx.x) * blockDim.y + threadIdx.y,
                      static_cast<unsigned long long>(gridDim.x) * blockDim.y};
    copy_rows(static_cast<const Word*>(source), read_rows(indices, span, rows), static_cast<Word*>(out), words,
              share);
}

struct GatheredField {
    const void* source;
    void* out;
    unsigned long long words;
    unsigned word;            // bytes
    unsigned lanes, inverse;  // along a row, and 65536 / lanes, rounded up
};

struct GatheredFields {
    GatheredField fields[8];  // those without words are not there
};

template <typename Word>
__device__ inline void copy_field(const GatheredField& field, const Rows& rows, const Share& share) {
    copy_rows(static_cast<const Word*>(field.source), rows, static_cast<Word*>(field.out), field.words, share);
}

// Divides a block by a field's lanes: of up to 256 threads, a product with the inverse is the exact quotient.
__device__ inline Share find_share(const GatheredField& field) {
    const unsigned size = blockDim.x * blockDim.y, threads = size < 256 ? size : 256;
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    const unsigned lanes = field.lanes < threads ? field.lanes : threads;
    const unsigned beside = lanes < field.lanes ? 1 : threads * field.inverse >> 16;
    const unsigned row = lanes < field.lanes ? 0 : thread * field.inverse >> 16;
    const bool is_idle = thread >= beside * lanes;
    return {is_idle ? field.words : static_cast<unsigned long long>(blockIdx.y) * lanes + thread - row * lanes,
            static_cast<unsigned long long>(gridDim.y) * lanes,
            static_cast<unsigned long long>(blockIdx.x) * beside + row,
            static_cast<unsigned long long>(gridDim.x) * beside};
}

extern "C" __global__ void gather_fields(const long long* __restrict__ indices, const long long* __restrict__ span,
                                         unsigned long long count, const __grid_constant__ GatheredFields gathered) {
    const Rows rows = read_rows(indices, span, count);
    for (unsigned number = blockIdx.z; number < 8; number += gridDim.z) {
        const GatheredField& field = gathered.fields[number];
        const Share share = find_share(field);
        switch (field.word) {
            case 16:
                copy_field<uint4>(field, rows, share);
                break;
            case 8:
                copy_field<unsigned long long>(field, rows, share);
                break;
            case 4:
                copy_field<unsigned int>(field, rows, share);
                break;
            case 2:
                copy_field<unsigned short>(field, rows, share);
                break;
            case 1:
                copy_field<unsigned char>(field, rows, share);
                break;
            default:
                break;
        }
    }
}
