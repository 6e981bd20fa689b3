// gather: out[i] = source[indices[i]], rows of any size; with a span, out[i] = source[indices[first + i]].
//
// A plain copy, so two things count: neighboring lanes must access neighboring words, and words must be as
// large as the rows and both addresses allow (the launcher picks 16, 8, 4, 2 or 1 bytes). A block is `x`
// lanes along a row times `y` rows: 256 lanes per row if rows are long, one lane per row if a row is one
// word. That keeps all lanes busy and cache lines whole. Long rows are also split over the grid's y, so that
// a few of them fill the device too. There are no divisions.
//
// Row numbers are not checked: the caller guarantees that they are in the source.
//
// `indices` may be an epoch's order that is already on the device. `span` is then the first and the last
// position of a batch in it, so only these two numbers have to come from the host. Rows past the last
// position repeat it. Without indices, positions are row numbers.
//
// gather_fields gathers the rows of several arrays by the same indices in one launch. Each block takes its rows
// of one array after the other, so short rows leave lanes idle, which costs less than another launch.
//
// Launch: any grid, two-dimensional blocks of any size. Twin and launcher: gather.py.

__device__ inline unsigned long long find_row(const long long* indices, const long long* span,
                                              unsigned long long row) {
    unsigned long long position = row;
    if (span != nullptr) {
        const unsigned long long last = static_cast<unsigned long long>(span[1]);
        position += static_cast<unsigned long long>(span[0]);
        position = position < last ? position : last;
    }
    return indices == nullptr ? position : static_cast<unsigned long long>(indices[position]);
}

template <typename Word>
__device__ inline void copy_rows(const Word* source, const long long* indices, const long long* span, Word* out,
                                 unsigned long long rows, unsigned long long words) {
    const unsigned long long first = static_cast<unsigned long long>(blockIdx.y) * blockDim.x + threadIdx.x;
    const unsigned long long step = static_cast<unsigned long long>(gridDim.y) * blockDim.x;
    for (unsigned long long row = static_cast<unsigned long long>(blockIdx.x) * blockDim.y + threadIdx.y;
         row < rows; row += static_cast<unsigned long long>(gridDim.x) * blockDim.y) {
        const Word* from = source + find_row(indices, span, row) * words;
        Word* to = out + row * words;
        for (unsigned long long word = first; word < words; word += step) {
            to[word] = from[word];
        }
    }
}

template <typename Word>
__global__ void gather(const void* __restrict__ source, const long long* __restrict__ indices,
                       const long long* __restrict__ span, void* __restrict__ out, unsigned long long rows,
                       unsigned long long words) {
    copy_rows(static_cast<const Word*>(source), indices, span, static_cast<Word*>(out), rows, words);
}

struct GatheredField {
    const void* source;
    void* out;
    unsigned long long words;
    unsigned long long word;  // bytes
};

struct GatheredFields {
    GatheredField fields[8];  // those without words are not there
};

extern "C" __global__ void gather_fields(const long long* __restrict__ indices, const long long* __restrict__ span,
                                         unsigned long long rows, const __grid_constant__ GatheredFields gathered) {
    for (int number = 0; number < 8; ++number) {
        const GatheredField& field = gathered.fields[number];
        const void* source = field.source;
        switch (field.word) {
            case 16:
                copy_rows(static_cast<const uint4*>(source), indices, span, static_cast<uint4*>(field.out), rows,
                          field.words);
                break;
            case 8:
                copy_rows(static_cast<const unsigned long long*>(source), indices, span,
                          static_cast<unsigned long long*>(field.out), rows, field.words);
                break;
            case 4:
                copy_rows(static_cast<const unsigned int*>(source), indices, span,
                          static_cast<unsigned int*>(field.out), rows, field.words);
                break;
            case 2:
                copy_rows(static_cast<const unsigned short*>(source), indices, span,
                          static_cast<unsigned short*>(field.out), rows, field.words);
                break;
            case 1:
                copy_rows(static_cast<const unsigned char*>(source), indices, span,
                          static_cast<unsigned char*>(field.out), rows, field.words);
                break;
            default:
                break;
        }
    }
}
