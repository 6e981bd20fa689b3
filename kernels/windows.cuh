// windows.cuh: the positions of windows in images. The host's part is in crop.py.

// Nothing outside an image may be read, and the host cannot check windows on the device without waiting for
// it. So a window that reaches beyond the edge is moved inside.
__device__ inline int moved_inside(int offset, int room) {
    return offset < 0 ? 0 : offset > room ? room : offset;
}
