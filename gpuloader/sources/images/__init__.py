"""Images: encoded ones, how they are decoded, and the geometry that gives them one size.

In: the bytes of JPEG, PNG and other files, arrays of pixels, and images of Pillow.
Out: uint8 pixels of shape (height, width, 3), whole or resampled; and regions of them for a GPU.
Callers: users create `ImageFolder`, `ImageFiles` and `Image`; `transforms` plans and resamples.
"""
