"""Programs that load MNIST as Paddle's tutorials do, with Paddle's import lines. None of them trains.

Each keeps in `seen` what the training loop would get. `datafile` is a mnist.json.gz.
"""

GENERATORS = """
import gzip, json, random
import numpy as np
import paddle.fluid as fluid

train_set, val_set, eval_set = json.load(gzip.open(datafile))
BATCHSIZE = 100


def load_data(mode):
    images, labels = {"train": train_set, "valid": val_set, "eval": eval_set}[mode]
    index_list = list(range(len(images)))

    def data_generator():
        if mode == "train":
            random.shuffle(index_list)
        imgs_list, labels_list = [], []
        for i in index_list:
            imgs_list.append(np.reshape(images[i], [1, 28, 28]).astype("float32"))
            labels_list.append(np.reshape(labels[i], [1]).astype("int64"))
            if len(imgs_list) == BATCHSIZE:
                yield np.array(imgs_list), np.array(labels_list)
                imgs_list, labels_list = [], []
        if len(imgs_list) > 0:
            yield np.array(imgs_list), np.array(labels_list)

    return data_generator


with fluid.dygraph.guard(fluid.CPUPlace()):
    place = fluid.CPUPlace()
    loader = fluid.io.DataLoader.from_generator(capacity=5, return_list=True)
    loader.set_batch_generator(load_data("valid"), places=place)
    for epoch_id in range(2):
        epoch = []
        for batch_id, data in enumerate(loader()):
            image_data, label_data = data
            image = fluid.dygraph.to_variable(image_data)
            label = fluid.dygraph.to_variable(label_data)
            epoch.append((image, label))
        seen.append(epoch)
"""

READERS = """
import numpy as np
import paddle
import paddle.fluid as fluid

place = fluid.CUDAPlace(0) if fluid.is_compiled_with_cuda() else fluid.CPUPlace()
with fluid.dygraph.guard(place):
    for epoch_id in range(2):
        epoch = []
        train_loader = paddle.batch(paddle.dataset.mnist.test(), batch_size=16)
        for batch_id, data in enumerate(train_loader()):
            image_data = np.array([x[0] for x in data]).astype("float32")
            label_data = np.array([x[1] for x in data]).astype("int64").reshape(-1, 1)
            image = fluid.dygraph.to_variable(image_data)
            label = fluid.dygraph.to_variable(label_data)
            epoch.append((image, label))
        seen.append(epoch)
"""

PROGRAMS = """
import paddle
import paddle.fluid as fluid

train_program, startup_program = fluid.Program(), fluid.Program()
with fluid.program_guard(train_program, startup_program), fluid.unique_name.guard():
    image = fluid.layers.data(name="image", shape=[1, 28, 28], dtype="float32", stop_gradient=True)
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    loader = fluid.io.DataLoader.from_generator(feed_list=["image", "label"], capacity=16, iterable=True)
    reader = fluid.io.batch(fluid.io.buffered(paddle.dataset.mnist.test(), 500), batch_size=32)
    loader.set_sample_list_generator(reader, places=fluid.cpu_places(1))
    for epoch_id in range(2):
        seen.append([(data[0]["image"], data[0]["label"]) for data in loader()])
"""

STARTED = """
import paddle
import paddle.fluid as fluid

image = fluid.data(name="image", shape=[None, 784], dtype="float32")
label = fluid.data(name="label", shape=[None, 1], dtype="int64")
py_reader = fluid.io.PyReader(feed_list=[image, label], capacity=4, iterable=False)
py_reader.decorate_sample_list_generator(paddle.batch(paddle.dataset.mnist.test(), batch_size=64))
for epoch_id in range(2):
    py_reader.start()
    epoch = []
    try:
        while True:
            [data] = py_reader.next()
            epoch.append((data["image"], data["label"]))
    except fluid.core.EOFException:
        py_reader.reset()
    seen.append(epoch)
"""

DATASETS = """
import numpy as np
import paddle
from paddle.io import BatchSampler, DataLoader, Dataset, DistributedBatchSampler


class MnistDataset(Dataset):
    def __init__(self):
        self.samples = list(paddle.dataset.mnist.test()())

    def __getitem__(self, index):
        image, label = self.samples[index]
        return image.reshape([1, 28, 28]), np.array([label]).astype("int64")

    def __len__(self):
        return len(self.samples)


dataset = MnistDataset()
for options in (
    {"batch_size": 100},
    {"batch_sampler": BatchSampler(dataset, batch_size=100)},
    {"batch_sampler": DistributedBatchSampler(dataset, 100, num_replicas=1, rank=0), "num_workers": 2},
):
    loader = DataLoader(dataset, places="cpu", **options)
    assert len(loader) == -(-len(dataset) // 100)
    seen.append([(image, label) for image, label in loader()])
"""
