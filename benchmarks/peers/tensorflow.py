"""The cases with tf.data. JPEG files go through its own decoder, since its users would not call Pillow."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.peers import Loader, workers
from benchmarks.peers.cases import Case
from benchmarks.peers.samples import Pictures


def open_loaders(case: Case) -> dict[str, Loader]:
    """Return tf.data pipelines, tuned by tf.data's own autotuner."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    auto = tf.data.AUTOTUNE
    dataset = case.make(case.length)
    match case.name:
        case "arrays":
            slices = tf.data.Dataset.from_tensor_slices((dataset.images, dataset.labels))
            order = tf.data.Dataset.range(case.length).shuffle(case.length).batch(case.size)
            images, labels = tf.constant(dataset.images), tf.constant(dataset.labels)
            gathered = order.map(lambda rows: (tf.gather(images, rows), tf.gather(labels, rows)))
            return {
                "from_tensor_slices": slices.shuffle(case.length).batch(case.size).prefetch(auto),
                "gather": gathered.prefetch(auto),
            }
        case "images":
            # A range and a lookup, because slices of 4,096 images would hold each image sixteen times.
            rows = tf.data.Dataset.range(case.length).batch(case.size)
            pictures, labels = tf.constant(dataset.images), tf.constant(dataset.labels)
            found = rows.map(lambda row: _look_up(pictures, labels, row), num_parallel_calls=auto)
            return {"gather": found.prefetch(auto)}
        case "jpeg":
            files = tf.data.Dataset.from_tensor_slices(dataset.files).repeat().take(case.length)
            decoded = files.enumerate().map(_decode, num_parallel_calls=auto)
            return {"its own decoder": decoded.batch(case.size).prefetch(auto)}
        case "pictures":
            files = tf.data.Dataset.from_tensor_slices((dataset.files, list(range(len(dataset.files)))))
            chosen = files.repeat().take(case.length).shuffle(case.length)
            made = chosen.map(augment, num_parallel_calls=auto).batch(case.size)
            return {"its own decoder": made.prefetch(auto)}
        case "waits":
            return {workers(16, "thread"): _call(case, dataset, 16)}
        case "lists":
            return {
                workers(2, "thread"): _call(case, dataset, 2),
                f"whole batches, {workers(2, 'thread')}": _call_for_batches(case, dataset, 2),
            }
        case "small":
            slices = tf.data.Dataset.from_tensor_slices((dataset.rows,))
            return {"from_tensor_slices": slices.batch(case.size).prefetch(auto)}
        case "stream" | "stream_lists" | "ready" | "ready_images":
            return {"from_generator": _generate(case, dataset)}
    return {}


def touch(batch: Any) -> object:
    """Read the first number of the first tensor."""
    return batch[0].numpy().item(0)


def _look_up(pictures: Any, labels: Any, rows: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    rows = rows % tf.shape(pictures, tf.int64)[0]
    return tf.gather(pictures, rows), tf.gather(labels, rows)


def _decode(index: Any, file: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    picture = tf.image.resize(tf.io.decode_jpeg(file, 3), (224, 224))
    return tf.cast(picture, tf.uint8), index


def augment(file: Any, label: Any, side: int = Pictures.SIZE) -> tuple[Any, Any]:
    """Return a random window of a file, as in TensorFlow's own training programs: only it is decoded."""
    import tensorflow as tf

    size = tf.image.extract_jpeg_shape(file)
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        size, whole, 0, 0.1, (3 / 4, 4 / 3), (0.08, 1.0), 10, True
    )
    window = tf.concat([begin[:2], extent[:2]], 0)
    picture = tf.image.decode_and_crop_jpeg(file, window, channels=3)
    picture = tf.image.random_flip_left_right(tf.image.resize(picture, (side, side)))
    picture = (picture / 255 - Pictures.MEAN) / Pictures.STD
    return tf.transpose(picture, (2, 0, 1)), label


def _call(case: Case, dataset: Any, threads: int) -> Any:
    """Call Python for each sample, `threads` calls at a time."""
    import tensorflow as tf

    read = _python(dataset.__getitem__, dataset[0])
    batches = _indices(case).map(read, num_parallel_calls=threads).batch(case.size)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads  # else one thread per core
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


def _call_for_batches(case: Case, dataset: Any, threads: int) -> Any:
    """Call Python for each batch of indices, which crosses into Python and back less often."""
    import numpy as np
    import tensorflow as tf

    def collect(indices: Any) -> list[Any]:
        samples = [dataset[index] for index in indices]
        return [np.stack(values) for values in zip(*samples, strict=True)]

    read = _python(collect, collect([0]), batched=True)
    return _indices(case).batch(case.size).map(read, num_parallel_calls=threads).prefetch(tf.data.AUTOTUNE)


def _indices(case: Case) -> Any:
    import tensorflow as tf

    indices = tf.data.Dataset.range(case.length)
    return indices.shuffle(case.length) if case.shuffle else indices


def _python(function: Any, like: Any, *, batched: bool = False) -> Any:
    """Return an operation that calls a Python function and has the shapes and dtypes of `like`."""
    import numpy as np
    import tensorflow as tf

    kinds = [np.asarray(value) for value in like]

    def read(index: Any) -> tuple[Any, ...]:
        values = tf.numpy_function(function, [index], [kind.dtype for kind in kinds])
        for value, kind in zip(values, kinds, strict=True):
            value.set_shape((None, *kind.shape[1:]) if batched else kind.shape)
        return tuple(values)

    return read


def _generate(case: Case, stream: Any) -> Any:
    import numpy as np
    import tensorflow as tf

    first = [np.asarray(value) for value in stream.items[0]]
    kinds = [np.dtype(np.float32) if field.dtype == np.float64 else field.dtype for field in first]
    signature = tuple(tf.TensorSpec(field.shape, kind) for field, kind in zip(first, kinds, strict=True))
    made = tf.data.Dataset.from_generator(
        lambda: (tuple(item) for item in stream), output_signature=signature
    )
    return (made.batch(case.size) if case.batch_size else made).prefetch(tf.data.AUTOTUNE)
