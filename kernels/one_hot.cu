// one_hot: writes a row of zeros for every label, with a one in the label's column.
//
// Only stores matter. A thread writes 16 bytes of a row if rows consist of such words, and one element otherwise;
// neighboring lanes write neighboring words, in blocks of `x` lanes along a row times `y` rows, as in gather.cu.
// Elements are written as bits, so that dtypes of one size share a kernel. Converted to unsigned 64 bits, a negative
// label is larger than any number of classes. So neither a negative label nor one beyond the last class matches a
// column, and its row stays zero.
//
// Launch: any grid, two-dimensional blocks of any size. Declaration and twin: one_hot.py.

using Size = unsigned long long;

struct alignas(16) Word {
    Size low, high;
};

template <typename Label, typename Element>
__global__ void one_hot(const Label* __restrict__ labels, void* __restrict__ out, Size rows, Size classes, Size one) {
    const Size first = static_cast<Size>(blockIdx.y) * blockDim.x + threadIdx.x;
    const Size lanes = static_cast<Size>(gridDim.y) * blockDim.x;
    const Size size = classes * sizeof(Element);
    const bool is_wide = size % sizeof(Word) == 0 && reinterpret_cast<Size>(out) % sizeof(Word) == 0;
    for (Size row = static_cast<Size>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
         row += static_cast<Size>(gridDim.x) * blockDim.y) {
        const Size label = static_cast<Size>(labels[row]);
        unsigned char* to = static_cast<unsigned char*>(out) + row * size;
        if (!is_wide) {
            for (Size column = first; column < classes; column += lanes) {
                reinterpret_cast<Element*>(to)[column] = column == label ? static_cast<Element>(one) : Element(0);
            }
            continue;
        }
        const Size place = label < classes ? label * sizeof(Element) : size;  // of its one, in bytes
        for (Size byte = first * sizeof(Word); byte < size; byte += lanes * sizeof(Word)) {
            const Size low = place - byte, high = low - sizeof(Size);  // huge where the one lies before
            const Word word = {low < sizeof(Size) ? one << 8 * low : 0, high < sizeof(Size) ? one << 8 * high : 0};
            *reinterpret_cast<Word*>(to + byte) = word;
        }
    }
}
