// windows.cuh: where windows of pictures lie.

// The host cannot look at what lies on the device without waiting, and nothing may be read from outside a
// picture: a window that reaches over the edge is moved inside.
__device__ inline int moved_inside(int offset, int room) {
    return offset < 0 ? 0 : offset > room ? room : offset;
}
