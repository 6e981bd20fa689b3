// one_hot: a row of zeros for every label, with a one in its column.
//
// Only stores count: lanes side by side write words side by side, in blocks of `x` lanes along a row times `y`
// rows as in gather.cu. An element is moved as its bits, so that dtypes of one size share a kernel. A label
// below 0, widened to 64 bits without sign, is larger than any number of classes; so is one beyond the last.
// No column is its own, and the row stays zero.
//
// Launch: any grid, any block in two dimensions. Twin and launcher: one_hot.py.

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
