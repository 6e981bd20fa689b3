// wide.cuh: loads of 4 to 16 bytes from any address.
//
// A wide load needs an aligned address. From any other address, bytes are cut out of two neighboring aligned
// loads; the lanes of a warp share those, so they come from L1. Such loads begin before the bytes and end
// after them. Where that would reach out of the array, bytes are loaded one at a time. The bytes themselves have to
// lie in the array; the caller sees to that.

using Address = unsigned long long;

struct Extent {
    Address begin, end;  // of an array
};

// 4-byte parts of 1, 2 or 4 times 4 bytes that are loaded or stored at once.
template <int count>
struct alignas(4 * count) Wide {
    unsigned at[count];
};

template <int count>
struct Parts {
    unsigned at[count];
};

__device__ inline Address address_of(const void* pointer) {
    return reinterpret_cast<Address>(pointer);
}

#ifndef GPULOADER_ON_HOST
__device__ inline void prefetch(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
#endif

// Bits `bits` to bits + 31 of two words; one instruction.
__device__ inline unsigned cut_out(unsigned low, unsigned high, unsigned bits) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> bits);
}

// Loads byte by byte, and zeros outside of the array; a loop, because it almost never runs.
template <typename Result, int count>
__device__ inline Result load_bytes(const unsigned char* from, const Extent& array) {
    Result result = {};
#pragma unroll 1
    for (int byte = 4 * count - 1; byte >= 0; --byte) {
        for (int i = count - 1; i > 0; --i) {
            result.at[i] = cut_out(result.at[i - 1], result.at[i], 24);
        }
        const Address address = address_of(from) + byte;
        const bool is_inside = address >= array.begin && address < array.end;
        result.at[0] = result.at[0] << 8 | (is_inside ? from[byte] : 0u);
    }
    return result;
}

// Loads 4 * count bytes by wide loads of as many.
template <int count>
__device__ inline Wide<count> load_wide(const unsigned char* from, const Extent& array) {
    constexpr unsigned size = 4 * count;
    const unsigned skipped = static_cast<unsigned>(address_of(from) % size);
    const Wide<count>* aligned = reinterpret_cast<const Wide<count>*>(from - skipped);
    if (skipped == 0) {
        return *aligned;
    }
    if (address_of(aligned) < array.begin || address_of(aligned) + 2 * size > array.end) {
        return load_bytes<Wide<count>, count>(from, array);
    }
    const Wide<count> low = aligned[0], high = aligned[1];
    unsigned parts[2 * count];
    for (int i = 0; i < count; ++i) {
        parts[i] = low.at[i];
        parts[count + i] = high.at[i];
    }
    for (unsigned step = count / 2; step > 0; step /= 2) {
        for (unsigned i = 0; i + step < 2 * count; ++i) {
            parts[i] = skipped & 4 * step ? parts[i + step] : parts[i];
        }
    }
    Wide<count> result;
    for (int i = 0; i < count; ++i) {
        result.at[i] = cut_out(parts[i], parts[i + 1], skipped % 4 * 8);
    }
    return result;
}

// Loads 4 * count bytes by loads of 4, for counts that no wide load has.
template <int count>
__device__ inline Parts<count> load_parts(const unsigned char* from, const Extent& array) {
    const unsigned skipped = static_cast<unsigned>(address_of(from) % 4);
    const unsigned* aligned = reinterpret_cast<const unsigned*>(from - skipped);
    Parts<count> result;
    if (skipped == 0) {
        for (int i = 0; i < count; ++i) {
            result.at[i] = aligned[i];
        }
        return result;
    }
    if (address_of(aligned) < array.begin || address_of(aligned) + 4 * (count + 1) > array.end) {
        return load_bytes<Parts<count>, count>(from, array);
    }
    unsigned parts[count + 1];
    for (int i = 0; i <= count; ++i) {
        parts[i] = aligned[i];
    }
    for (int i = 0; i < count; ++i) {
        result.at[i] = cut_out(parts[i], parts[i + 1], skipped * 8);
    }
    return result;
}

// Where byte `byte` of mirrored pixels of 3 bytes lies in the pixels; what is behind the last one does not matter.
__device__ constexpr int find_mirrored(int byte, int pixels) {
    return byte < 3 * pixels ? 3 * (pixels - 1 - byte / 3) + byte % 3 : 0;
}

// Loads 4 * count bytes, from byte `first` on, of a row of pixels of 3 bytes that is mirrored left to right; `end` is
// where the row ends before that. All these bytes must be in the row.
template <int count>
__device__ inline Parts<count> load_mirrored(const unsigned char* end, unsigned first, const Extent& array) {
    if constexpr (count == 2) {  // four pixels, of which a word may take bytes from three words
        const Parts<1> one = load_mirrored<1>(end, first, array), other = load_mirrored<1>(end, first + 4, array);
        return {{one.at[0], other.at[0]}};
    } else {
        // Up to two bytes of the first pixel come before them.
        constexpr int pixels = (4 * count + 2) / 3, words = (3 * pixels + 3) / 4;
        const unsigned pixel = first / 3;
        const unsigned char* from = end - 3 * (pixel + pixels);
        const bool is_inside = address_of(from) + 4 * words <= array.end;
        const Parts<words> loaded =
            is_inside ? load_parts<words>(from, array) : load_bytes<Parts<words>, words>(from, array);
        unsigned mirrored[count + 1];
        for (int word = 0; word <= count; ++word) {
            // Its bytes come from two neighboring words, so that one instruction puts them together.
            int low = words - 2;
            for (int i = 0; i < 4; ++i) {
                const int place = find_mirrored(4 * word + i, pixels) / 4;
                low = place < low ? place : low;
            }
            unsigned chosen = 0;
            for (int i = 0; i < 4; ++i) {
                chosen |= static_cast<unsigned>(find_mirrored(4 * word + i, pixels) - 4 * low) << 4 * i;
            }
            mirrored[word] = __byte_perm(loaded.at[low], loaded.at[low + 1], chosen);
        }
        Parts<count> result;
        for (int i = 0; i < count; ++i) {
            result.at[i] = cut_out(mirrored[i], mirrored[i + 1], (first - 3 * pixel) * 8);
        }
        return result;
    }
}
