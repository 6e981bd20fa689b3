// one_hot: writes a row of zeros for every label, with a one in the label's column.
//
// Only stores matter: neighboring lanes write neighboring words, in blocks of `x` lanes along a row times `y`
// rows, as in gather.cu. Elements are written as bits, so that dtypes of one size share a kernel. Converted
// to unsigned 64 bits, a negative label is larger than any number of classes. So neither a negative label nor
// one beyond the last class matches a column, and its row stays zero.
//
// Launch: any grid, two-dimensional blocks of any size. Declaration and twin: one_hot.py.

template <typename Label, typename Word>
__global__ void one_hot(const Label* __restrict__ labels, void* __restrict__ out, unsigned long long rows,
                        unsigned long long classes, unsigned long long one) {
    const unsigned long long first = static_cast<unsigned long long>(blockIdx.y) * blockDim.x + threadIdx.x;
    const unsigned long long step = static_cast<unsigned long long>(gridDim.y) * blockDim.x;
    for (unsigned long long row = static_cast<unsigned long long>(blockIdx.x) * blockDim.y + threadIdx.y;
         row < rows; row += static_cast<unsigned long long>(gridDim.x) * blockDim.y) {
        const unsigned long long label = static_cast<unsigned long long>(labels[row]);
        Word* to = static_cast<Word*>(out) + row * classes;
        for (unsigned long long column = first; column < classes; column += step) {
            to[column] = column == label ? static_cast<Word>(one) : Word(0);
        }
    }
}
